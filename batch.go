package dataloader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// A Collate makes a batch of samples. It may build the batch in the memory of dst, as append does: dst is
// a batch that the caller has given back with DataLoader.Recycle, or the zero value. It must keep neither dst nor
// samples, but for what the batch it returns is made of. With workers it runs in several goroutines at
// once, on different batches. PyTorch: collate_fn.
type Collate[T, B any] func(dst B, samples []T) (B, error)

// A Tensor is a dense array in row-major order: Shape has the length of each dimension, and Data
// their product of elements. A batch of 64 images of 28 by 28 has the shape [64 28 28]. The shape [] is
// that of a single number. Data and Shape are what GoMLX, Gorgonia and ONNX Runtime take.
type Tensor[E any] struct {
	Data  []E
	Shape []int
}

// Rows is the Dataset of a tensor's rows: sample i is a view of row i, without its first dimension, which
// shares the tensor's memory. A tensor without dimensions, or whose Data does not fit its Shape, is an
// error. PyTorch: TensorDataset.
func Rows[E any](t Tensor[E]) (Dataset[Tensor[E]], error) {
	if len(t.Shape) == 0 {
		return nil, errors.New("dataloader: Rows: the tensor has no dimension, must have at least 1")
	}
	n, size := t.Shape[0], elements(t.Shape[1:])
	if elements(t.Shape) != len(t.Data) || size < 0 {
		return nil, fmt.Errorf("dataloader: Rows: the tensor has %d elements, which is not the product of its shape %v", len(t.Data), t.Shape)
	}
	shape := slices.Clone(t.Shape[1:])
	return Func(n, func(_ context.Context, i int) (Tensor[E], error) {
		return Tensor[E]{t.Data[i*size : (i+1)*size : (i+1)*size], shape}, nil
	}), nil
}

// elements returns the number of elements of a shape, or -1 if there is no such shape.
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

// List is the Collate that makes a batch a slice of its samples.
func List[T any](dst []T, samples []T) ([]T, error) {
	return append(dst[:0], samples...), nil
}

// Stack is the Collate that copies tensors of one shape into a tensor with one dimension more, the first,
// whose length is the number of samples. Samples of the shape [] are numbers and make a vector. A sample
// of another shape than the first is an error. PyTorch: default_collate.
func Stack[E any](dst Tensor[E], samples []Tensor[E]) (Tensor[E], error) {
	if len(samples) == 0 {
		return dst, errors.New("Stack: no samples")
	}
	first := samples[0]
	size := len(first.Data)
	if elements(first.Shape) != size {
		return dst, fmt.Errorf("Stack: sample 0 of the batch has shape %v, but %d elements", first.Shape, size)
	}
	dst.Data = slices.Grow(dst.Data[:0], size*len(samples))[:size*len(samples)]
	for i, s := range samples {
		if !slices.Equal(s.Shape, first.Shape) || len(s.Data) != size {
			return dst, fmt.Errorf("Stack: sample %d of the batch has shape %v and %d elements, sample 0 has shape %v and %d elements; they must be equal",
				i, s.Shape, len(s.Data), first.Shape, size)
		}
		copy(dst.Data[i*size:], s.Data)
	}
	dst.Shape = append(append(dst.Shape[:0], len(samples)), first.Shape...)
	return dst, nil
}

// A Ragged is a batch of sequences of different lengths, padded to the longest. Its shape is
// [number of sequences, longest length]; Lengths has the length of each before padding.
type Ragged[E any] struct {
	Tensor[E]
	Lengths []int
}

// Pad returns the Collate that makes a matrix of sequences, each filled up with fill to the longest.
// PyTorch: pad_sequence with batch_first.
func Pad[E any](fill E) Collate[[]E, Ragged[E]] {
	return func(dst Ragged[E], samples [][]E) (Ragged[E], error) {
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

// CollatePair returns the Collate that makes a pair of batches of pairs: with Stack and List, of images
// and their labels, a tensor of images and a slice of labels. It panics if one of the two is nil.
func CollatePair[T, U, A, B any](first Collate[T, A], second Collate[U, B]) Collate[Pair[T, U], Pair[A, B]] {
	panicIf(first == nil || second == nil, "CollatePair: a Collate is nil")
	type columns struct {
		firsts  []T
		seconds []U
	}
	var free sync.Pool // of columns, between calls
	return func(dst Pair[A, B], samples []Pair[T, U]) (Pair[A, B], error) {
		c, _ := free.Get().(*columns)
		if c == nil {
			c = new(columns)
		}
		for _, s := range samples {
			c.firsts = append(c.firsts, s.First)
			c.seconds = append(c.seconds, s.Second)
		}
		var err error
		if dst.First, err = first(dst.First, c.firsts); err == nil {
			dst.Second, err = second(dst.Second, c.seconds)
		}
		clear(c.firsts)
		clear(c.seconds)
		c.firsts, c.seconds = c.firsts[:0], c.seconds[:0]
		free.Put(c)
		return dst, err
	}
}

// Batch makes batches of size consecutive items, the last of which may be smaller. If an item failed so has its
// batch, with the error of the first. An end of the context leaves no short batch. size must be positive.
// Unlike a loader's, a batch is always built in memory of its own. torchdata: Batcher, with drop_last=False.
func Batch[T, B any](src Stream[T], size int, collate Collate[T, B]) Stream[B] {
	bad := cmp.Or(badNil("Batch", src), badIf(collate == nil, "Batch: the Collate is nil"), badIf(size < 1, "Batch: size is %d, must be positive", size))
	return streamOf(bad, func(ctx context.Context, from Cursor, yield func(Item[B], error) bool) error {
		var samples []T
		var first error // of the items of this batch
		var last Cursor
		flush := func() bool {
			item, err := Item[B]{Next: last}, first
			if err == nil {
				if item.Value, err = try(func() (B, error) { return collate(*new(B), samples) }); err != nil {
					item.Value, err = *new(B), failed("Batch", last, err)
				}
			}
			clear(samples)
			samples, first = samples[:0], nil
			return yield(item, err)
		}
		for item, err := range src(ctx, from) {
			if fatal(item, err) {
				return err
			}
			first = cmp.Or(first, err)
			samples, last = append(samples, item.Value), item.Next
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

// Unbatch gives the elements of each batch one by one; an empty batch gives none, one that failed one error. A resume in the
// middle of a batch asks for that batch again. torchdata: Unbatcher.
func Unbatch[T any](src Stream[[]T]) Stream[T] {
	const name = "Unbatch"
	return staged(name, 0, badNil(name, src), func(ctx context.Context, from Cursor, at stage, emit emitter[T]) error {
		pos := from.Pos
		for batch, err := range src(ctx, at.Source) {
			if fatal(batch, err) {
				return err
			}
			if err != nil {
				batch.Value = make([]T, 1)
			}
			if at.N > len(batch.Value) {
				return from.refused("the batch has only %d elements now, %d were given", len(batch.Value), at.N)
			}
			for n := at.N; n < len(batch.Value); n++ {
				next := &stage{By: name, N: n + 1, Source: at.Source}
				if n+1 == len(batch.Value) {
					next = &stage{By: name, Source: batch.Next}
				}
				if pos++; !emit(batch.Value[n], err, pos, next) {
					return nil
				}
			}
			at = stage{Source: batch.Next}
		}
		return nil
	})
}
