"""Dense transformer blocks for models that read a pair's sequences: attention with masked padding.

What a block makes of a token depends on its own sequence's real tokens alone, so neither padding
nor the rest of a batch can change it.

Shape legend: P sequences, Q queries, J tokens, D width, H heads.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from tidegraph.errors import SettingError
from tidegraph.ops.dropout import keep_mask
from tidegraph.ops.products import product


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)` in the precision of the run, for any leading dimensions."""
    flat = product(x.reshape(-1, x.shape[-1]), layer.weight.t(), layer.bias)
    return flat.view(*x.shape[:-1], -1)


def dropped(x: Tensor, probability: float, key: int | Tensor) -> Tensor:
    """`x` with dropout from a counter-based key; itself where `probability` is 0."""
    return x * keep_mask(key, tuple(x.shape), probability, x) if probability else x


class AttentionBlock(nn.Module):
    """Multi-head attention and a feed-forward layer, each with a residual (Vaswani et al., 2017).

    Before (`norm_first`): x + A(LN(x)), then x + F(LN(x)); after: LN(x + A(x)), LN(x + F(x)), with
    A over keys and values of the same or of another sequence and F two linear layers with a GELU.

    Args:
        width: D, divisible by `heads`.
        heads: H.
        hidden: width of the feed-forward layer.
        dropout: probability, on what the residuals add.
        norm_first: normalise before each part, or after the sum.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float, norm_first: bool
    ) -> None:
        super().__init__()
        if width % heads:
            raise SettingError(f"a width of {width} is not divisible by heads={heads}")
        self.heads, self.dropout, self.norm_first = heads, dropout, norm_first
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.hidden_in = nn.Linear(width, hidden)
        self.hidden_out = nn.Linear(hidden, width)
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(
        self, query_PQD: Tensor, other_PJD: Tensor, used_PJ: Tensor, key: int | Tensor
    ) -> Tensor:
        """[P, Q, D]: the queries after attending to the used tokens of `other_PJD`.

        Args:
            query_PQD: tokens that ask.
            other_PJD: tokens that are asked; may be the same.
            used_PJ: bool, which of them are real; at least one in each row.
            key: random stream of the dropout.
        """
        rate = self.dropout if self.training else 0.0
        if self.norm_first:
            asking = self.attention_norm(query_PQD)
            asked = asking if other_PJD is query_PQD else self.attention_norm(other_PJD)
            query_PQD = query_PQD + dropped(self._attend(asking, asked, used_PJ), rate, key)
            thought = self._think(self.hidden_norm(query_PQD), rate, key + 1)
            return query_PQD + dropped(thought, rate, key + 2)
        seen = self._attend(query_PQD, other_PJD, used_PJ)
        query_PQD = self.attention_norm(query_PQD + dropped(seen, rate, key))
        thought = self._think(query_PQD, rate, key + 1)
        result: Tensor = self.hidden_norm(query_PQD + dropped(thought, rate, key + 2))
        return result

    def _attend(self, query_PQD: Tensor, other_PJD: Tensor, used_PJ: Tensor) -> Tensor:
        P, Q, D = query_PQD.shape
        J, H = other_PJD.shape[1], self.heads
        q_PHQd = linear(self.query, query_PQD).view(P, Q, H, D // H).transpose(1, 2)
        key_value = linear(self.key_value, other_PJD).view(P, J, 2, H, D // H)
        k_PHJd, v_PHJd = key_value.permute(2, 0, 3, 1, 4)
        out_PHQd = scaled_dot_product_attention(
            q_PHQd, k_PHJd, v_PHJd, attn_mask=used_PJ[:, None, None, :]
        )
        return linear(self.output, out_PHQd.transpose(1, 2).reshape(P, Q, D))

    def _think(self, x: Tensor, rate: float, key: int | Tensor) -> Tensor:
        return linear(self.hidden_out, dropped(gelu(linear(self.hidden_in, x)), rate, key))
