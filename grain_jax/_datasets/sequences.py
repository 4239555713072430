"""Methods of datasets that bring sequences of different lengths into arrays of equal shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from grain_jax._algebra import padding as pads
from grain_jax._datasets import fluent, operators
from grain_jax._values import errors

if TYPE_CHECKING:
    from grain_jax._datasets.iter_dataset import IterDataset

__all__ = ["Sequences", "StreamSequences"]

A = TypeVar("A", bound="Sequences")


class Sequences(fluent.Fluent):
    """What both kinds of datasets have."""

    def pad(
        self: A,
        lengths: Mapping[str, int],
        *,
        padding: Any = 0,
        truncate: bool = False,
        mask: bool = True,
    ) -> A:
        """Returns the dataset with features padded to one length each, and masks of what is real.

        Elements are dicts; a feature `x` becomes an array of shape (length, ...), and `x_mask`, of
        bools and shape (length,), is added. All other features stay as they are.

        Args:
          lengths: the length of each feature that is padded.
          padding: the value behind a sequence: one, or a dict with one for each feature.
          truncate: whether longer sequences are cut; otherwise they are an error.
          mask: whether masks are added.

        Raises:
          InvalidValueError: if a length is below 1; and as elements come, for a sequence that is
            longer, a feature that is missing, or a padding that its dtype does not hold.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> ds = grain.MapDataset.source([{"x": np.array([5, 6])}]).pad({"x": 3})
          >>> ds[0]["x"], ds[0]["x_mask"]
          (array([5, 6, 0]), array([ True,  True, False]))
        """
        function = pads.padding_of(lengths, padding, truncate, mask)
        result: A = self.map(function)  # type: ignore[attr-defined]
        return result


class StreamSequences(Sequences):
    """What needs several elements of a stream at once."""

    def bucket_by_length(
        self,
        length: str | Callable[[Any], int],
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        padding: Any = 0,
        mask: bool = True,
        window: int = 4096,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Returns batches of elements of similar length.

        Bucket k has lengths up to `boundaries[k]`, and above those of the one before. A batch goes
        out when its bucket has `batch_sizes[k]` elements, in the order in which they came. Features
        that are padded are as long as the boundary says, of shape (rows, boundary, ...), and get a
        mask `x_mask` of bools, of shape (rows, boundary); those above the last boundary are as long
        as the longest of the batch.

        No element waits for ever: with `window` later ones read, its batch goes out as it is. So do
        those that are left at the end, that with the oldest element first. With `drop_remainder`
        both are dropped, so that every batch of a bucket has one shape. A restored stream reads the
        last `window` elements again, at most.

        Args:
          length: the feature whose length counts, or a function that returns that of an element.
          boundaries: the longest length of each bucket, growing.
          batch_sizes: elements of a batch: one number, or one for each bucket, and one more for
            elements above the last boundary, which are an error otherwise.
          features: which are padded; None for the one whose length counts, if that is a name.
          padding: the value behind a sequence: one, or a dict with one for each of `features`.
          mask: whether masks are added.
          window: how many later elements an element waits for.
          drop_remainder: whether batches that are not full are dropped.
          batch_fn: makes the batch of a list of elements, instead of padding and stacking.

        Raises:
          InvalidValueError: if a number is below 1, boundaries do not grow, or there are not as
            many sizes; and as elements come, for one that is too long.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.arange(1, n + 1)} for n in (2, 4, 1, 3)]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> for batch in ds.bucket_by_length("x", [2, 4], batch_sizes=2):
          ...     print(batch["x"].tolist())
          [[1, 2], [1, 0]]
          [[1, 2, 3, 4], [1, 2, 3, 0]]
        """
        result: IterDataset[Any] = operators.made(
            "buckets:BucketIterDataset",
            self,
            length,
            boundaries,
            batch_sizes,
            features=features,
            padding=padding,
            mask=mask,
            window=window,
            drop_remainder=drop_remainder,
            batch_fn=batch_fn,
        )
        return result

    def pack(
        self,
        length_struct: Mapping[str, int],
        *,
        num_packing_bins: int,
        fit: Literal["first", "best"] = "first",
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Mapping[str, int] | None = None,
        padding_struct: Mapping[str, Any] | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> IterDataset[Any]:
        """Returns rows of sequences that stay whole, with ids of segments and positions in them.

        Args:
          length_struct: the length of each feature.
          num_packing_bins: rows that are filled side by side.
          fit: whether an element goes into the first row that has room for it, or into the fullest.
          seed: for the order in which rows go out.
          shuffle_bins: whether rows that go out together do so in a random order.
          shuffle_bins_group_by_feature: a feature of numbers that sorts such rows.
          meta_features: features without segment ids and positions.
          pack_alignment_struct: for each feature, what places are multiples of.
          padding_struct: for each feature, the value between and behind the sequences.
          max_sequences_per_bin: elements of a row at most; None for any number.

        `experimental.FirstFitPackIterDataset` says more of them.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> ds = ds.pack({"x": 5}, num_packing_bins=2, shuffle_bins=False)
          >>> [row["x"].tolist() for row in ds]
          [[1, 2, 3, 8, 0], [4, 5, 6, 7, 0]]
        """
        kinds = {"first": "FirstFitPackIterDataset", "best": "BestFitPackIterDataset"}
        if fit not in kinds:
            raise errors.InvalidValueError(f'fit must be "first" or "best", got {fit!r}.')
        result: IterDataset[Any] = operators.made(
            f"packing:{kinds[fit]}",
            self,
            length_struct=length_struct,
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )
        return result

    def concat_then_split(
        self,
        length_struct: Mapping[str, int],
        *,
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: Any = None,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> IterDataset[Any]:
        """Returns rows of sequences one behind the other, cut wherever a row is full.

        Args:
          length_struct: the length of each feature.
          meta_features: features that are not cut.
          split_full_length_features: whether elements of exactly a row's length are cut as others.
          bos_handling: a `BOSHandling`: what becomes of the first token of each segment.
          bos_features: in which features.
          bos_token_id: the token that replaces it.

        `experimental.ConcatThenSplitIterDataset` says more of them.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> [row["x"].tolist() for row in ds.concat_then_split({"x": 4})]
          [[1, 2, 3, 4], [5, 6, 7, 8]]
        """
        result: IterDataset[Any] = operators.made(
            "splitting:ConcatThenSplitIterDataset",
            self,
            length_struct=length_struct,
            meta_features=meta_features,
            split_full_length_features=split_full_length_features,
            bos_features=bos_features,
            bos_token_id=bos_token_id,
            **({} if bos_handling is None else {"bos_handling": bos_handling}),
        )
        return result
