"""The configuration of a drafter: DeepSpec's keys as fields, plus the draft vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.errors import ModelMismatchError

# DeepSpec's names of the backbones; both hold DSpark and DFlash drafters.
QWEN3, GEMMA4 = "Qwen3DSparkModel", "Gemma4DSparkModel"
# The tap of the embedding output; the others name the target layer whose output is read.
EMBEDDING_TAP = -1
# Drafters of one draft per call: DeepSpec's Eagle3, and our own name for a next-token module.
QWEN3_EAGLE3, GEMMA4_EAGLE3, QWEN3_MTP = "Qwen3Eagle3Model", "Gemma4Eagle3Model", "Qwen3MtpModel"
CHAINS = (QWEN3_EAGLE3, GEMMA4_EAGLE3, QWEN3_MTP)
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Shape of a drafter (DeepSpec checkpoint keys; `gamma` is DeepSpec's `block_size` or `ttt_length`).

    With `markov_rank` 0 and no confidence head this is a DFlash drafter, or one of `CHAINS`, which have one
    layer, no such heads and no use for `mask_token_id`. `draft_vocab_size` is ours: 0 means
    the full vocabulary, otherwise the checkpoint holds a map `d2t` from draft ids to target ids and the
    Markov output has that many rows. `head_dim` and `num_key_value_heads` are those of the draft layers: of a
    Gemma the global ones.

    Attributes:
        partial_rotary_factor: share of a head that turns with its position.
        attention_k_eq_v: values are made of the keys' projection.
        final_logit_softcapping: base logits stay within plus and minus this; 0: no cap.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    gamma: int = 7
    markov_rank: int = 256
    markov_head_type: str = "vanilla"
    draft_vocab_size: int = 0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    attention_bias: bool = False
    has_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    architecture: str = QWEN3
    partial_rotary_factor: float = 1.0
    attention_k_eq_v: bool = False
    final_logit_softcapping: float = 0.0

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be a drafter."""
        self._check_taps()
        self._check_heads()
        if self.is_chain and self.num_hidden_layers != 1:
            raise ModelMismatchError(
                f"num_hidden_layers {self.num_hidden_layers} of a {self.architecture} must be 1"
            )
        if self.gamma < 1:
            name = "ttt_length" if self.is_eagle3 else "block_size"
            raise ModelMismatchError(f"{name} must be at least 1, not {self.gamma}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelMismatchError("num_attention_heads must be a multiple of num_key_value_heads")
        if not 0 <= self.draft_vocab_size <= self.vocab_size:
            raise ModelMismatchError("draft_vocab_size must lie between 0 (all) and vocab_size")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ModelMismatchError(
                f"mask_token_id {self.mask_token_id} must be a token below vocab_size {self.vocab_size}"
            )

    def _check_taps(self) -> None:
        ids = self.target_layer_ids
        if self.reads_last_state:
            if ids != (self.num_target_layers - 1,):
                raise ModelMismatchError(
                    f"target_layer_ids {list(ids)} of a {QWEN3_MTP} must be "
                    f"[{self.num_target_layers - 1}], the last layer of its target"
                )
            return
        if self.is_eagle3 and EMBEDDING_TAP in ids:
            raise ModelMismatchError(
                f"target_layer_ids holds {EMBEDDING_TAP}, the embedding, which no Eagle3 drafter reads"
            )
        last = self.num_target_layers - 2
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < EMBEDDING_TAP or ids[-1] > last:
            raise ModelMismatchError(
                f"target_layer_ids {list(ids)} must rise strictly within [{EMBEDDING_TAP}, {last}]: "
                f"{EMBEDDING_TAP} is the embedding, and the last of the {self.num_target_layers} target "
                "layers cannot be tapped"
            )

    def _check_heads(self) -> None:
        if self.markov_rank < 0:
            raise ModelMismatchError(f"markov_rank must be at least 0 (no head), not {self.markov_rank}")
        if self.markov_head_type not in MARKOV_HEAD_TYPES:
            raise ModelMismatchError(
                f"markov_head_type {self.markov_head_type!r} is not one of {', '.join(MARKOV_HEAD_TYPES)}"
            )
        if self.has_confidence_head and self.confidence_head_with_markov and self.markov_rank == 0:
            raise ModelMismatchError(
                "confidence_head_with_markov needs a Markov head, but markov_rank is 0: set it to false"
            )

    @property
    def kind(self) -> str:
        """What its authors call it: DFlash is a backbone without heads."""
        if self.is_chain:
            return "Eagle3" if self.is_eagle3 else "MTP"
        return "DSpark" if self.markov_rank or self.has_confidence_head else "DFlash"

    @property
    def is_chain(self) -> bool:
        """Whether it drafts one token per call, each with the state that came out of the one before."""
        return self.architecture in CHAINS

    @property
    def is_eagle3(self) -> bool:
        """Whether it is an Eagle3 drafter."""
        return self.architecture in (QWEN3_EAGLE3, GEMMA4_EAGLE3)

    @property
    def is_gemma(self) -> bool:
        """Whether its layers are a Gemma 4's."""
        return self.architecture in (GEMMA4, GEMMA4_EAGLE3)

    @property
    def reads_last_state(self) -> bool:
        """Whether its features are the target's last hidden states, after the target's last norm."""
        return self.architecture == QWEN3_MTP

    @property
    def attention_input_size(self) -> int:
        """Width of what queries, keys and values are made of; in Eagle3 embedding and state side by side."""
        return 2 * self.hidden_size if self.is_eagle3 else self.hidden_size

    @property
    def num_draft_tokens(self) -> int:
        """Rows of the drafter's output: the draft vocabulary, or all of the target's."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def feature_size(self) -> int:
        """Width of one row of target features, L*H."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def attention_scale(self) -> float:
        """Of the attention scores; a Gemma relies on the norms of its queries and keys."""
        return 1.0 if self.is_gemma else self.head_dim**-0.5

    @property
    def embedding_scale(self) -> float:
        """Of the embedded tokens."""
        return self.hidden_size**0.5 if self.is_gemma else 1.0
