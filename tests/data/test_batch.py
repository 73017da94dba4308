"""Micro-batches: groups stay whole, budgets hold, masks come from lengths."""

from __future__ import annotations

import numpy as np
import pytest

from builders import completion, groups
from humanline.data.batch import bundle, collate, pack
from humanline.data.rows import EncodedGroup, Place


def test_R27_groups_are_never_split_or_merged():
    """5 prompts × 4 completions under budgets that do not divide them: every group whole, in exactly one micro-batch."""
    bundles = [bundle(group, row) for row, group in enumerate(groups("group", 5))]
    for budget in (1, 60, 100, 250, 10_000):
        packed = pack(bundles, budget)
        assert sorted(group[0].row for part in packed for group in part) == [0, 1, 2, 3, 4]
        for part in packed:
            batch = collate(part)
            assert batch.group_B.tolist() == [i for i in range(len(part)) for _ in range(4)]
            assert len(part) == 1 or batch.input_ids_BS.numel() <= budget


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_R18_targets_and_masks_by_hand(padding_side: str):
    """Prompt [7, 8], completions [0, 2] and [2]; 0 and 2 are also padding and end ids, and still count.

    Sequence 1 is 7 8 0 2, sequence 2 is 7 8 2: the token at place p is predicted by the output at place p − 1.
    """
    group = EncodedGroup("pair", np.array([7, 8], np.int32), (completion([0, 2]), completion([2], 0.0)), Place("x", 1))
    batch = collate([bundle(group, 0)], padding_side=padding_side)
    right = padding_side == "right"
    assert batch.input_ids_BS.tolist() == [[7, 8, 0, 2], [7, 8, 2, 0] if right else [0, 7, 8, 2]]
    assert batch.mask_BT.tolist() == [[True, True], [True, False]]
    assert batch.token_BT.tolist() == [[0, 2], [2, 0]]
    assert batch.predict_BT[0].tolist() == [1, 2] and batch.predict_BT[1, 0] == (1 if right else 2)
    if right:
        assert batch.attention_mask_BS is None and batch.position_ids_BS is None
    else:
        assert batch.attention_mask_BS.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
        assert batch.position_ids_BS.tolist() == [[0, 1, 2, 3], [0, 0, 1, 2]]


def test_content_address_depends_on_tokens_and_mask_only():
    def key(prompt: list[int], ids: list[int], feedback: float = 1.0, row: int = 0) -> bytes:
        group = EncodedGroup("label", np.array(prompt, np.int32), (completion(ids, feedback),), Place("x", 1))
        return bundle(group, row)[0].key

    assert key([1, 2], [3]) == key([1, 2], [3], feedback=0.0, row=9)
    assert len({key([1, 2], [3]), key([1], [2, 3]), key([1, 2], [3, 3]), key([2, 1], [3])}) == 4
