package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// In what shape does a batch come? The first half of this file has the
// functions that make a batch from the samples of a loader: as a slice (List),
// as a tensor (Stack), as a padded matrix (Pad), as a pair of two of these
// (CollatePair). The second half makes batches from the items of a stream, and
// items from batches.

// A Collate makes a batch from samples. It may build the batch in the memory of
// dst, as append does: dst is a batch that the caller has given back with
// DataLoader.Recycle, or the zero value. The batch may contain the samples, but
// not the slice that holds them, which the loader clears and reuses. With
// workers a Collate runs in several goroutines at once, on different batches.
// PyTorch: collate_fn.
type Collate[T, B any] func(dst B, samples []T) (B, error)

// A Tensor is a dense array in row-major order. Shape is the length of each
// dimension, and Data holds as many elements as their product. The last
// dimension varies fastest: in a tensor of the shape [2 3], element (i, j) is
// Data[3*i+j].
//
//	Data   0 1 2 3 4 5        row 0   0 1 2
//	Shape  [2 3]              row 1   3 4 5
//
// A batch of 64 images of 28 by 28 has the shape [64 28 28]. The shape [] is
// that of a single number. GoMLX, Gorgonia and ONNX Runtime take Data and Shape
// as they are. The package has no operations on tensors, only this layout of a
// batch.
type Tensor[E any] struct {
	Data  []E
	Shape []int
}

// elements returns the number of elements of a shape, or -1 if a dimension is
// negative or the product overflows.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt/d {
			return -1
		}
		n *= d
	}
	return n
}

// List is the Collate whose batch is a slice of the samples, as they are:
// texts, records, labels. It reuses the memory of dst.
func List[T any](dst []T, samples []T) ([]T, error) {
	return append(dst[:0], samples...), nil
}

// Stack is the Collate that copies tensors of one shape into a tensor with one
// more dimension, the first, whose length is the number of samples. Samples of
// the shape [] are numbers, and their batch is a vector. A sample whose shape
// differs from that of the first is an error. PyTorch: default_collate.
//
// Stack reuses the memory of dst if it is large enough. So a loop that calls
// Recycle after each step allocates nothing in a steady state, and each sample
// is copied once, into its place in the batch.
func Stack[E any](dst Tensor[E], samples []Tensor[E]) (Tensor[E], error) {
	if len(samples) == 0 {
		return dst, errors.New("Stack: no samples")
	}
	first := samples[0]
	size := len(first.Data)
	if elements(first.Shape) != size {
		return dst, fmt.Errorf("Stack: sample 0 of the batch has shape %v, but %d elements; "+
			"set Shape to the length of each dimension", first.Shape, size)
	}
	length := size * len(samples)
	dst.Data = slices.Grow(dst.Data[:0], length)[:length]
	for i, s := range samples {
		if !slices.Equal(s.Shape, first.Shape) || len(s.Data) != size {
			return dst, fmt.Errorf("Stack: sample %d of the batch has shape %v and %d elements, "+
				"sample 0 has shape %v and %d elements; they must be equal, "+
				"and a Transform that checks the shape lets OnError decide",
				i, s.Shape, len(s.Data), first.Shape, size)
		}
		copy(dst.Data[i*size:], s.Data)
	}
	dst.Shape = append(append(dst.Shape[:0], len(samples)), first.Shape...)
	return dst, nil
}

// A Padded is a batch of sequences of different lengths, each padded to the
// longest. Its shape is [number of sequences, longest length]. Lengths holds
// the length of each sequence before padding. The sequences 1 2 3, 4 and 5 6,
// padded with 0:
//
//	1 2 3     Shape    [3 3]
//	4 0 0     Lengths  [3 1 2]
//	5 6 0
type Padded[E any] struct {
	Tensor[E]
	Lengths []int
}

// Pad returns the Collate that makes a matrix of sequences, each padded with
// fill to the longest. If a sample is a flat slice of vectors, divide Shape[1]
// and all Lengths by the width of a vector, and read Data as a tensor of the
// shape [number of sequences, Shape[1], width]. PyTorch: pad_sequence with
// batch_first.
func Pad[E any](fill E) Collate[[]E, Padded[E]] {
	return func(dst Padded[E], samples [][]E) (Padded[E], error) {
		dst.Lengths = dst.Lengths[:0]
		longest := 0
		for _, s := range samples {
			dst.Lengths = append(dst.Lengths, len(s))
			longest = max(longest, len(s))
		}
		dst.Data = slices.Grow(dst.Data[:0], longest*len(samples))
		for _, s := range samples {
			dst.Data = append(dst.Data, s...)
			for range longest - len(s) {
				dst.Data = append(dst.Data, fill)
			}
		}
		dst.Shape = append(dst.Shape[:0], len(samples), longest)
		return dst, nil
	}
}

// CollatePair returns the Collate that makes a pair of batches from a batch of
// pairs: with Stack and List, images and their labels become a tensor of images
// and a slice of labels. Pairs may be nested, for more than two fields. It
// panics if first or second is nil.
func CollatePair[T, U, A, B any](
	first Collate[T, A], second Collate[U, B],
) Collate[Pair[T, U], Pair[A, B]] {
	panicIf(first == nil || second == nil, "CollatePair: a Collate is nil")
	return func(dst Pair[A, B], samples []Pair[T, U]) (_ Pair[A, B], err error) {
		firsts := make([]T, len(samples))
		seconds := make([]U, len(samples))
		for i, s := range samples {
			firsts[i], seconds[i] = s.First, s.Second
		}
		if dst.First, err = first(dst.First, firsts); err != nil {
			return dst, fmt.Errorf("the first of each pair: %w", err)
		}
		if dst.Second, err = second(dst.Second, seconds); err != nil {
			return dst, fmt.Errorf("the second of each pair: %w", err)
		}
		return dst, nil
	}
}

// Second reading: batches of a stream.

// Batch makes batches of size consecutive items. The last batch of an epoch may
// be smaller; Filter drops it:
//
//	full := Batch(items, size, List[int]).Filter(func(b []int) bool { return len(b) == size })
//
// If an item failed, its batch fails, with the first such error; Stream.OnError
// drops such items before. If the source ends with an error, the unfinished
// batch is dropped. Batch panics if an argument is nil or size is not positive.
//
// The cursors are those of src, so their Pos counts items and not batches.
// Unlike a loader's, each batch has memory of its own: dst is always zero. The
// slice of samples is reused, as by a loader. torchdata: Batcher, with
// drop_last=False.
func Batch[T, B any](src Stream[T], size int, collate Collate[T, B]) Stream[B] {
	src.mustExist("Batch")
	panicIf(collate == nil, "Batch: the Collate is nil")
	panicIf(size < 1, "Batch: size is %d, must be positive", size)
	known := src.ranks.part("Batch", false)
	return streamOf(known, func(ctx context.Context, from Cursor, yield func(Item[B]) bool) error {
		var samples []T
		var failed error // the error of the first failed item
		var last Cursor  // the source's cursor after the last sample, which is the batch's Next
		flush := func() bool {
			batch := Item[B]{Err: failed, Next: last}
			if failed == nil {
				err := try(func() (err error) {
					batch.Value, err = collate(*new(B), samples)
					return err
				})
				if err != nil {
					batch = failedItem[B]("Batch", last, err)
				}
			}
			clear(samples)
			samples, failed = samples[:0], nil
			return yield(batch)
		}
		for item, err := range src.items(ctx, from) {
			if err != nil {
				return err
			}
			failed = cmp.Or(failed, item.Err)
			samples = append(samples, item.Value)
			last = item.Next
			if len(samples) == size && !flush() {
				return nil
			}
		}
		if len(samples) > 0 {
			flush()
		}
		return nil
	})
}

// Unbatch yields the elements of each batch one by one. An empty batch yields
// no item, a failed batch one failed item. Unbatch panics if src is nil.
// torchdata: Unbatcher.
//
// In the middle of a batch, a cursor of Unbatch holds the source's cursor
// before that batch, and the number of elements already yielded. So a resume
// reads the batch again, and skips that number of its elements. If the batch
// fails at the resume, the rest of it is one failed item. If the batch has
// another length now, or the source's cursor after it differs, the cursor is
// refused. The elements are not compared.
//
// If a batch fails for a moment before a checkpoint, a Shuffle behind Unbatch
// refuses the cursor; Stream.OnError says why.
func Unbatch[S ~[]T, T any](src Stream[S]) Stream[T] {
	src.mustExist("Unbatch")
	return staged(src.ranks.part("Unbatch", true), &stamp{by: "Unbatch" + src.ranks.steps()}, 0, func(
		ctx context.Context, from Cursor, state stageState, yield yieldAt[T],
	) error {
		pos := from.Pos
		for batch, err := range src.items(ctx, state.Source) {
			if err != nil {
				return err
			}
			elements, length := batch.Value, len(batch.Value)
			if batch.Err != nil {
				length = state.Again // nothing is known about its length
			}
			if err := state.checkReread(from, length, batch.Next, batch.Err); err != nil {
				return err
			}
			if batch.Err != nil { // one failed item, whatever came before the cursor
				state.N, elements = 0, S{*new(T)}
			}
			again := &replay{len(elements), batch.Next}
			for i := state.N; i < len(elements); i++ {
				next := freshState{n: i + 1, source: state.Source, again: again}
				if i+1 == len(elements) {
					next = freshState{source: batch.Next}
				}
				pos++
				if !yield(Item[T]{Value: elements[i], Err: batch.Err}, pos, next) {
					return nil
				}
			}
			state = stageState{Source: batch.Next}
		}
		return state.checkReread(from, 0, state.Source, nil)
	})
}
