"""Padding and masks against tensors written by hand; True means "may attend"."""

import torch

from nmt.models.source import for_heads, look_ahead_mask, pad


def test_padding_is_after_the_end_of_a_sequence() -> None:
    assert pad([[4], [], [5, 6]], 0, first=[1, 9], last=[2]).tolist() == [
        [1, 9, 4, 2, 0],
        [1, 9, 2, 0, 0],
        [1, 9, 5, 6, 2],
    ]
    assert pad([[4], [5, 6]], 0).tolist() == [[4, 0], [5, 6]]


def test_a_position_sees_itself_and_earlier_ones() -> None:
    expected = [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    assert look_ahead_mask(4).tolist() == expected
    assert look_ahead_mask(4).dtype == torch.bool


def test_the_first_position_sees_itself_alone() -> None:
    assert look_ahead_mask(1).tolist() == [[True]]


def test_a_padding_mask_is_the_same_for_every_head_and_query() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])  # (B, S)
    heads = for_heads(mask)
    assert heads.shape == (2, 1, 1, 3)  # (B, 1, 1, S)
    everywhere = heads.expand(2, 4, 5, 3)  # (B, H, Q, S)
    for head in range(4):
        for query in range(5):
            assert torch.equal(everywhere[:, head, query], mask)


def test_padding_and_look_ahead_masks_are_intersected() -> None:
    both = for_heads(torch.tensor([[True, True, False]])) & look_ahead_mask(3)
    assert both.shape == (1, 1, 3, 3)
    assert both[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, False]]
