package recipes

// Batches for a framework: of a struct, asked for one by one, in memory of its
// own. The adapters gomlx.go.txt (GoMLX) and libjpeg.go.txt (libjpeg-turbo, by
// cgo) lie beside this file; their heads say where to paste them.
//
//	Example_batchOfStructs  three fields in a batch
//	Example_nextBatch       a framework that asks for the next batch
//	Example_pinnedMemory    pinned memory, memory of C, or a mapped file
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"slices"

	"dataloader"
)

// A batch of three fields is a struct with a Collate of its own. Put in your
// own fields. Fill the slices of dst from their start, as append to dst[:0]
// does: then a batch that was given back with Recycle is filled again, and the
// loop allocates no new one. Without a struct, nested pairs do the same:
//
//	// of Pair[Tensor[float32], Pair[int32, string]]
//	CollatePair(Stack[float32], CollatePair(List[int32], List[string]))
func Example_batchOfStructs() {
	type sample struct {
		image dataloader.Tensor[float32]
		label int32
		name  string
	}
	type batch struct {
		images dataloader.Tensor[float32]
		labels []int32
		names  []string
	}
	data := dataloader.Func(5, func(ctx context.Context, i int) (sample, error) {
		x := float32(i)
		return sample{
			image: dataloader.Tensor[float32]{Data: []float32{x, x, x, x}, Shape: []int{2, 2}},
			label: int32(i % 2),
			name:  fmt.Sprintf("%d.png", i),
		}, nil
	})
	collate := func(dst batch, samples []sample) (batch, error) {
		images := make([]dataloader.Tensor[float32], len(samples))
		dst.labels = dst.labels[:0]
		dst.names = dst.names[:0]
		for i, s := range samples {
			images[i] = s.image
			dst.labels = append(dst.labels, s.label)
			dst.names = append(dst.names, s.name)
		}
		var err error
		dst.images, err = dataloader.Stack(dst.images, images)
		return dst, err
	}
	loader, err := dataloader.New(data, collate, dataloader.Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	memory := map[any]bool{}
	for b, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(b.images.Shape, b.images.Data, b.labels, b.names)
		memory[&b.images.Data[0]] = true
		memory[&b.labels[0]] = true
		memory[&b.names[0]] = true
		loader.Recycle(b)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "slices")
	// Output:
	// [2 2 2] [0 0 0 0 1 1 1 1] [0 1] [0.png 1.png]
	// [2 2 2] [2 2 2 2 3 3 3 3] [0 1] [2.png 3.png]
	// [1 2 2] [4 4 4 4] [0] [4.png]
	// 3 batches in 3 slices
}

// A framework that asks for the next batch, as GoMLX's train.Dataset does with
// Yield and Reset, gets it from iter.Pull2. Between two calls of next the
// cursor stands after the batch in hand, so it is the checkpoint as in a loop.
// DropLast makes all batches equally large, for frameworks that compile a graph
// for each shape. Call stop when you leave an epoch early, because its
// goroutines live until then, and after an error, because next would then
// report the end of the epoch.
func Example_nextBatch() {
	// features, and a label of the shape [1]
	type sample = dataloader.Pair[dataloader.Tensor[float32], dataloader.Tensor[int32]]
	data := dataloader.Func(5, func(ctx context.Context, i int) (sample, error) {
		x := float32(i)
		return sample{
			First:  dataloader.Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}},
			Second: dataloader.Tensor[int32]{Data: []int32{int32(i % 2)}, Shape: []int{1}},
		}, nil
	})
	loader, err := dataloader.New(data, dataloader.CollatePair(dataloader.Stack[float32],
		dataloader.Stack[int32]), dataloader.Options{
		BatchSize: 2, DropLast: true, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	type batch = dataloader.Pair[dataloader.Tensor[float32], dataloader.Tensor[int32]]
	var at dataloader.Cursor
	var next func() (batch, error, bool)
	stop := func() {}
	reset := func() { // begins an epoch: the next one after io.EOF, the same one in its middle
		stop()
		next = nil
		at = dataloader.Cursor{Epoch: at.Epoch}
	}
	yield := func() (batch, error) {
		if next == nil {
			next, stop = iter.Pull2(loader.Run(context.Background(), &at))
		}
		b, err, ok := next()
		if !ok {
			err = io.EOF
		}
		if err != nil {
			stop()
			next = nil // the next call begins at the cursor, and tries a failed batch again
		}
		return b, err
	}
	for range 4 {
		b, err := yield()
		fmt.Println(b.First.Shape, b.First.Data, b.Second.Shape, b.Second.Data, err,
			"cursor", at.Epoch, at.Pos)
	}
	reset()
	fmt.Println("cursor", at.Epoch, at.Pos)
	// Output:
	// [2 2] [0 0 1 1] [2 1] [0 1] <nil> cursor 0 2
	// [2 2] [2 4 3 9] [2 1] [0 1] <nil> cursor 0 4
	// [] [] [] [] EOF cursor 1 0
	// [2 2] [0 0 1 1] [2 1] [0 1] <nil> cursor 1 2
	// cursor 1 0
}

// Batches in memory of your own: pinned memory, memory of C, or a mapped file.
// Recycle gives it to the loader before the loop, in Workers × Prefetch + 2
// pieces: for the batches in flight, the batch in the loop body, and the batch
// before, which may still be on its way to the device. Each piece must hold a
// whole batch; load refuses any other memory, where Stack would allocate. A
// loop that is left early drops pieces, and so does a batch that fails: make a
// new loader then, and give it all the pieces.
func Example_pinnedMemory() {
	const n, width, batchSize, workers, prefetch = 40, 3, 4, 2, 2
	const pieces = workers*prefetch + 2
	// In a program: cudaMallocHost, C.malloc with unsafe.Slice, syscall.Mmap, …
	memory := make([]float32, pieces*batchSize*width)

	load := func(ctx context.Context, dst dataloader.Tensor[float32],
		indices []int) (dataloader.Tensor[float32], error) {
		size := len(indices) * width
		if cap(dst.Data) < size {
			return dst, errors.New("no memory was given back for this batch")
		}
		dst.Data = dst.Data[:size]
		dst.Shape = append(dst.Shape[:0], len(indices), width)
		for row, i := range indices {
			for j := range width {
				dst.Data[row*width+j] = float32(10*i + j) // read and decode into the batch
			}
		}
		return dst, nil
	}
	loader, err := dataloader.NewBatchFunc(n, load, dataloader.Options{
		BatchSize: batchSize, Workers: workers, Prefetch: prefetch,
	})
	if err != nil {
		log.Fatal(err)
	}
	for piece := range slices.Chunk(memory, batchSize*width) {
		loader.Recycle(dataloader.Tensor[float32]{Data: piece})
	}
	var before dataloader.Tensor[float32]
	batches := 0
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		batches++ // begin to upload batch
		if before.Data != nil {
			loader.Recycle(before) // its upload has ended
		}
		before = batch
	}
	loader.Recycle(before)
	last := before.Data[len(before.Data)-width:]
	fmt.Println(batches, "batches in", pieces, "pieces; the last row is", last)
	// Output:
	// 10 batches in 6 pieces; the last row is [390 391 392]
}
