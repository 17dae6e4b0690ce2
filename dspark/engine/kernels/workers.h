// A few helper threads that may help, and are never waited for unless they hold a piece of the work.
//
// An OpenMP region ends when every thread has arrived. On a machine that also runs the other services a helper is
// often not on a core, and then each of the hundreds of regions of a step waits for the operating system's next
// time slice. Here the calling thread takes pieces too and does all of them if nobody comes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dspark {

class Workers {
 public:
  // Never destroyed: helpers may still be asleep in it when the process ends.
  static Workers& shared() {
    static Workers* workers = new Workers();
    return *workers;
  }

  // f(i) for every i in [0, count), on this thread and at most num_threads - 1 helpers. Returns when all are done.
  template <class F>
  void run(int64_t count, int num_threads, const F& f) {
    if (count < 2 || num_threads < 2 || count > kMaxCount || !gate_.try_lock()) {
      for (int64_t i = 0; i < count; i++) f(i);
      return;
    }
    start_helpers(num_threads - 1);
    call_ = [](const void* context, int64_t i) { (*(const F*)context)(i); };
    context_ = &f;
    done_.store(0, std::memory_order_relaxed);
    job_.store(pack(generation_ = (generation_ + 1) % kGenerations, count, 0));
    if (num_asleep_.load() > 0) wake();
    while (take_piece()) {
    }
    // What is left is in the hands of helpers.
    for (int spins = 0; done_.load(std::memory_order_acquire) < count; spins++)
      spins < kSpinsBeforeYield ? pause() : std::this_thread::yield();
    gate_.unlock();
  }

 private:
  static constexpr int64_t kMaxCount = (1 << 20) - 1;
  static constexpr uint64_t kGenerations = 1 << 24;
  static constexpr int kSpinsBeforeYield = 2000;
  static constexpr auto kStaysAwake = std::chrono::microseconds(300);

  // One word says which job, how many pieces it has and which is next, so that a piece is taken in one step and
  // a helper that slept through the end of a job cannot take a piece of it.
  static uint64_t pack(uint64_t generation, uint64_t count, uint64_t next) {
    return generation << 40 | count << 20 | next;
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  // Takes and does the next piece; false: there is none.
  bool take_piece() {
    uint64_t job = job_.load(std::memory_order_acquire);
    while (true) {
      const uint64_t count = job >> 20 & kMaxCount, next = job & kMaxCount;
      if (next >= count) return false;
      if (job_.compare_exchange_weak(job, job + 1)) {
        // The job cannot end before this piece is done: what it calls stays what it is.
        call_(context_, (int64_t)next);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
  }

  void start_helpers(int wanted) {
    for (; num_helpers_ < wanted; num_helpers_++) std::thread([this] { help(); }).detach();
  }

  void help() {
    while (true) {
      auto last = std::chrono::steady_clock::now();
      for (int spins = 0;; spins++) {
        if (take_piece()) {
          last = std::chrono::steady_clock::now();
        } else if (spins % 64 == 63 && std::chrono::steady_clock::now() - last > kStaysAwake) {
          break;
        } else {
          pause();
        }
      }
      sleep();
    }
  }

  void sleep() {
    std::unique_lock<std::mutex> lock(mutex_);
    num_asleep_.fetch_add(1);
    // A job published before this thread counted itself asleep would wake nobody: look once more.
    const uint64_t job = job_.load();
    if ((job & kMaxCount) >= (job >> 20 & kMaxCount)) {
      const uint64_t seen = num_wakes_;
      woken_.wait(lock, [&] { return num_wakes_ != seen; });
    }
    num_asleep_.fetch_sub(1);
  }

  void wake() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      num_wakes_++;
    }
    woken_.notify_all();
  }

  // held by the one thread whose job it is; a second one works alone
  std::mutex gate_;
  uint64_t generation_ = 0;
  int num_helpers_ = 0;
  void (*call_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable woken_;
  uint64_t num_wakes_ = 0;
  std::atomic<int> num_asleep_{0};
};

// The same for ranges: f(begin, end) over pieces of at most `piece` of [0, count).
template <class F>
inline void run_ranges(int64_t count, int64_t piece, int num_threads, const F& f) {
  Workers::shared().run((count + piece - 1) / piece, num_threads, [&](int64_t i) {
    f(i * piece, (i + 1) * piece < count ? (i + 1) * piece : count);
  });
}

}  // namespace dspark
