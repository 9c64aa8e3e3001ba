package dataloader

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"log"
	"maps"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// A data set, a loader and the training loop, with a checkpoint in every step.
func Example() {
	squares := Func(10, func(ctx context.Context, i int) (float64, error) {
		return float64(i * i), nil // open, read, decode
	})
	loader, err := New(squares, List[float64], Options{BatchSize: 4, Shuffle: true, Seed: 1, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	for at.Epoch < 2 {
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				fmt.Println(err)
				return
			}
			checkpoint, _ := json.Marshal(at)
			fmt.Println(batch, string(checkpoint))
		}
	}
	// Output:
	// [4 0 81 49] {"epoch":0,"pos":4,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [1 25 16 36] {"epoch":0,"pos":8,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [64 9] {"epoch":0,"pos":10,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [36 25 49 1] {"epoch":1,"pos":4,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [81 4 64 0] {"epoch":1,"pos":8,"state":{"by":"Random(10, seed 1)","seed":1}}
	// [16 9] {"epoch":1,"pos":10,"state":{"by":"Random(10, seed 1)","seed":1}}
}

// The classic loader's first stage: one goroutine, the caller's, which loads a batch when the loop asks for it.
func ExampleNew_oneProcess() {
	features := make(Slice[Tensor[float32]], 20)
	for i := range features {
		features[i] = Tensor[float32]{Data: make([]float32, 100), Shape: []int{100}}
	}
	labels := Func(20, func(ctx context.Context, i int) (int, error) { return i % 3, nil })
	data, err := Pairs(features, labels)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, CollatePair(Stack[float32], List[int]), Options{BatchSize: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(loader.Len(), "batches")
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.First.Shape, batch.Second, err)
	}
	// Output:
	// 3 batches
	// [8 100] [0 1 2 0 1 2 0 1] <nil>
	// [8 100] [2 0 1 2 0 1 2 0] <nil>
	// [4 100] [1 2 0 1] <nil>
}

// The second stage: workers, whose batches are handed over as they are ready. A slow one comes last.
func ExampleNew_outOfOrder() {
	others := make(chan bool)
	slow := Func(6, func(ctx context.Context, i int) (int, error) {
		if i == 0 {
			<-others // sample 0 takes as long as all the others
		}
		return i, nil
	})
	loader, err := New(slow, List[int], Options{Workers: 2, Unordered: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	got := 0
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Print(batch)
		if got++; got == 5 {
			close(others)
		}
	}
	// Output: [1][2][3][4][5][0]
}

// The third stage: the batches are loaded in any order, and handed over in theirs.
func ExampleNew_inOrder() {
	others := make(chan bool, 3)
	slow := Func(6, func(ctx context.Context, i int) (int, error) {
		switch i {
		case 0: // waits for the three batches that may be loaded ahead of it
			<-others
			<-others
			<-others
		case 1, 2, 3:
			others <- true
		}
		return i, nil
	})
	loader, err := New(slow, List[int], Options{Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Print(batch)
	}
	// Output: [0][1][2][3][4][5]
}

// PyTorch's loader starts over in each new loop; an iterator goes on where the last loop left off. Here the loop
// says which: Epoch starts over, Run goes on from its cursor.
func ExampleStream_Run_restartOrContinue() {
	loader, err := New(Slice[string]{"a", "b", "c", "d"}, List[string], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 2 {
		for batch := range loader.Epoch(ctx, 0) {
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	fmt.Println(" starts over")

	var at Cursor
	for range 2 {
		for batch := range loader.Run(ctx, &at) {
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	fmt.Println(" goes on; next is epoch", at.Epoch)
	// Output:
	// [a][b][a][b] starts over
	// [a][b][c][d] goes on; next is epoch 1
}

// Saved as JSON, a cursor resumes another process: with other numbers of workers, and of ranks.
func ExampleCursor() {
	data := Func(24, func(ctx context.Context, i int) (int, error) { return i, nil })
	load := func(rank, ranks, batchSize int, checkpoint []byte, batches int) []byte {
		loader, err := New(data, List[int], Options{BatchSize: batchSize, Workers: ranks, Shard: Shard{Index: rank, Count: ranks}})
		if err != nil {
			fmt.Println(err)
			return nil
		}
		var at Cursor
		if err := json.Unmarshal(checkpoint, &at); err != nil {
			fmt.Println(err)
			return nil
		}
		fmt.Print("rank ", rank, " of ", ranks, ":")
		for batch := range loader.Run(context.Background(), &at) {
			fmt.Print(" ", batch)
			if batches--; batches == 0 {
				break
			}
		}
		fmt.Println()
		checkpoint, _ = json.Marshal(at)
		return checkpoint
	}
	load(0, 2, 4, []byte("{}"), 1)
	saved := load(1, 2, 4, []byte("{}"), 1) // every rank's checkpoint is the same
	fmt.Println(string(saved))
	load(0, 1, 8, saved, 1) // 1 rank with batches of 8 instead of 2 with batches of 4
	for rank := range 4 {   // or 4 with batches of 2
		load(rank, 4, 2, saved, 1)
	}
	// Output:
	// rank 0 of 2: [0 2 4 6]
	// rank 1 of 2: [1 3 5 7]
	// {"epoch":0,"pos":8,"state":{"by":"Sequential(24)"}}
	// rank 0 of 1: [8 9 10 11 12 13 14 15]
	// rank 0 of 4: [8 12]
	// rank 1 of 4: [9 13]
	// rank 2 of 4: [10 14]
	// rank 3 of 4: [11 15]
}

// A stream of one's own keeps what it needs in the cursor's State and loads it from there.
func ExampleCursor_Load() {
	type state struct{ Line int64 }
	at := Cursor{Epoch: 2, Pos: 100, State: state{Line: 1 << 60}}
	saved, _ := json.Marshal(at)
	var back Cursor
	if err := json.Unmarshal(saved, &back); err != nil {
		fmt.Println(err)
		return
	}
	var s state
	fmt.Println(back.Load(&s), s.Line == 1<<60)
	// Output: <nil> true
}

// The rows of an arena loader. Features are one array of all samples, and a batch is a copy of some of its rows.
// Without labels there is no Pair, and nothing else changes.
func ExampleRows() {
	features := Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, Shape: []int{5, 2}}
	data, err := Rows(features)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println("size", batch.Shape[0], "shape", batch.Shape, "dimensions", len(batch.Shape), batch.Data)
	}
	// Output:
	// size 2 shape [2 2] dimensions 2 [0 0 1 1]
	// size 2 shape [2 2] dimensions 2 [2 2 3 3]
	// size 1 shape [1 2] dimensions 2 [4 4]
}

// With labels, which are a second array.
func ExamplePairs() {
	features, err1 := Rows(Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2}, Shape: []int{3, 2}})
	labels, err2 := Rows(Tensor[int64]{Data: []int64{7, 8, 9}, Shape: []int{3}})
	data, err3 := Pairs(features, labels)
	loader, err4 := New(data, CollatePair(Stack[float32], Stack[int64]), Options{BatchSize: 3})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Shape, batch.Second.Data)
	}
	_, err := Pairs(features, Slice[int]{1, 2})
	fmt.Println(err)
	// Output:
	// [3 2] [0 0 1 1 2 2] [3] [7 8 9]
	// dataloader: Pairs: the first data set has 3 samples, the second 2; they must be equal
}

// An evaluation fetches batches by index while a training loop is under way, and does not disturb it.
func ExampleDataLoader_Batch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for batch := range loader.Epoch(ctx, 0) {
		last, err := loader.Batch(ctx, 0, loader.Len()-1)
		fmt.Println("train", batch, "evaluate", last, err)
	}
	// Output:
	// train [0 1] evaluate [4 5] <nil>
	// train [2 3] evaluate [4 5] <nil>
	// train [4 5] evaluate [4 5] <nil>
}

// The same epoch has the same order again, the next a new one: there is nothing to reset.
func ExampleDataLoader_Epoch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 6, Shuffle: true, Seed: 42})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, epoch := range []int{0, 0, 1} {
		for batch := range loader.Epoch(context.Background(), epoch) {
			fmt.Println("epoch", epoch, batch)
		}
	}
	// Output:
	// epoch 0 [5 4 0 2 3 1]
	// epoch 0 [5 4 0 2 3 1]
	// epoch 1 [1 2 0 4 3 5]
}

// The cursor says which batch is next, and so which one is current.
func ExampleDataLoader_Run() {
	const batchSize = 2
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e"}, List[string], Options{BatchSize: batchSize})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	for batch := range loader.Run(context.Background(), &at) {
		fmt.Println("epoch", at.Epoch, "batch", (at.Pos-1)/batchSize, "of", loader.Len(), batch)
	}
	// Output:
	// epoch 0 batch 0 of 3 [a b]
	// epoch 0 batch 1 of 3 [c d]
	// epoch 0 batch 2 of 3 [e]
}

// Recycle gives a batch's memory back after the step, as an arena does when it is popped. Here two pieces of memory
// serve all batches.
func ExampleDataLoader_Recycle() {
	data, err := Rows(Tensor[float32]{Data: make([]float32, 1000*784), Shape: []int{1000, 784}})
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 50})
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := map[*float32]bool{}
	for batch := range loader.Epoch(context.Background(), 0) {
		memory[&batch.Data[0]] = true
		loader.Recycle(batch)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "place")
	// Output: 20 batches in 1 place
}

// A loader is a stream, whose items carry the cursor that follows them.
func ExampleDataLoader_Stream() {
	loader, err := New(Slice[string]{"a", "b", "c"}, List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var stream Stream[[]string] = loader.Stream()
	var last Item[[]string]
	for item, err := range stream(context.Background(), Cursor{Epoch: 5}) {
		fmt.Println(item.Value, "then epoch", item.Next.Epoch, "pos", item.Next.Pos, err)
		last = item
	}
	for range stream(context.Background(), last.Next) {
		fmt.Println("not reached: nothing follows the last item")
	}
	// Output:
	// [a b] then epoch 5 pos 2 <nil>
	// [c] then epoch 5 pos 3 <nil>
}

// Four ranks share each epoch of ten samples. Train with PadTail, which repeats the first samples, or with DropTail, so
// that all ranks take the same number of steps. Evaluate with UnevenTail, which counts every sample once.
func ExampleTail() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for name, tail := range map[string]Tail{"pad": PadTail, "drop": DropTail, "uneven": UnevenTail} {
		text := name + ":"
		for rank := range 4 {
			loader, err := New(data, List[int], Options{BatchSize: 3, Shard: Shard{Index: rank, Count: 4}, Tail: tail})
			if err != nil {
				fmt.Println(err)
				return
			}
			for batch := range loader.Epoch(context.Background(), 0) {
				text += fmt.Sprint(" ", batch)
			}
		}
		fmt.Println(text)
	}
	// Unordered output:
	// pad: [0 4 8] [1 5 9] [2 6 0] [3 7 1]
	// drop: [0 4] [1 5] [2 6] [3 7]
	// uneven: [0 4 8] [1 5 9] [2 6] [3 7]
}

// Under torchrun, mpirun, srun or a Kubernetes indexed Job each process finds its shard in the environment.
func ExampleShardFromEnv() {
	os.Setenv("RANK", "1")
	os.Setenv("WORLD_SIZE", "4")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")
	shard, err := ShardFromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e", "f", "g", "h"}, List[string], Options{BatchSize: 2, Shard: shard})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(shard, batch)
	}
	// Output: {1 4} [b f]
}

// Skip bad samples, but not more than so many.
func ExampleSampleError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i%4 == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	budget := 2
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2, OnError: func(e *SampleError) error {
		if budget--; budget < 0 {
			return e
		}
		fmt.Println("skipped sample", e.Index)
		return nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, err, errors.Is(err, io.ErrUnexpectedEOF))
	}
	// Output:
	// skipped sample 3
	// [0 1 2] <nil> false
	// skipped sample 7
	// [4 5 6] <nil> false
	// [] dataloader: epoch 0, batch 2, sample 11: unexpected EOF true
}

// A panic in a worker is the error of its batch, with the stack.
func ExamplePanicError() {
	data := Func(2, func(ctx context.Context, i int) (string, error) {
		return []string{"a"}[i], nil // there is no sample 1
	})
	loader, err := New(data, List[string], Options{Workers: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		var p *PanicError
		if errors.As(err, &p) {
			fmt.Println(p.Value, len(p.Stack) > 0)
		} else {
			fmt.Println(batch, err)
		}
	}
	// Output:
	// [a] <nil>
	// runtime error: index out of range [1] with length 1 true
}

// Trace hears of every batch: who loaded it, when, and how long the loop waited for it.
func ExampleTiming() {
	var waited time.Duration
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2, Trace: func(t Timing) {
		fmt.Println("batch", t.Batch, "worker", t.Worker, "samples", t.Samples, "dropped", t.Dropped, t.Done.Before(t.Start))
		waited += t.Wait
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range loader.Epoch(context.Background(), 0) {
	}
	fmt.Println(waited > 0)
	// Output:
	// batch 0 worker -1 samples 2 dropped 0 false
	// batch 1 worker -1 samples 2 dropped 0 false
	// batch 2 worker -1 samples 1 dropped 0 false
	// true
}

// Augmentation draws from Rand, which gives the same numbers for any number of workers.
func ExampleRand() {
	data := Func(4, func(ctx context.Context, i int) (string, error) {
		flip := Rand(ctx).IntN(2) == 1
		angle := Rand(WithSeed(ctx, 2)).IntN(10) // of a generator of its own
		onWorker := Worker(ctx) >= 0
		return fmt.Sprint("image ", i, " flip ", flip, " angle ", angle, " on a worker ", onWorker), nil
	})
	for _, workers := range []int{0, 3} {
		loader, err := New(data, List[string], Options{Seed: 7, Workers: workers})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch := range loader.Epoch(context.Background(), 0) {
			fmt.Println(batch[0])
		}
	}
	// Output:
	// image 0 flip true angle 8 on a worker false
	// image 1 flip true angle 6 on a worker false
	// image 2 flip false angle 9 on a worker false
	// image 3 flip false angle 3 on a worker false
	// image 0 flip true angle 8 on a worker true
	// image 1 flip true angle 6 on a worker true
	// image 2 flip false angle 9 on a worker true
	// image 3 flip false angle 3 on a worker true
}

// The order that DistributedSampler gives each of three ranks, to share an epoch with a job in Python.
func ExampleTorchRandom() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for rank := range 3 {
		loader, err := New(data, List[int], Options{BatchSize: 4, Sampler: TorchRandom(10, 0), Shard: Shard{Index: rank, Count: 3}})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch := range loader.Epoch(context.Background(), 0) {
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [4 5 0 2]
	// rank 1 [1 3 8 4]
	// rank 2 [7 9 6 1]
}

// The samplers. An order is a function of the epoch, which any loop may ask at any position.
func ExampleSampler() {
	weighted, err := Weighted([]float64{0, 1, 0, 3}, 8, true, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range []Sampler{
		Sequential(5),
		Random(5, 1),
		RandomWithReplacement(5, 8, 1),
		weighted,
		Resize(Random(5, 1), 8),
		OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 4} }), // the caller's own
	} {
		order := s.Order(0)
		for pos := range s.Len() {
			fmt.Print(order(pos), " ")
		}
		fmt.Println(s)
	}
	// Output:
	// 0 1 2 3 4 Sequential(5)
	// 2 1 0 4 3 Random(5, seed 1)
	// 0 3 0 4 3 2 0 0 RandomWithReplacement(8 of 5, seed 1)
	// 3 3 3 1 3 1 3 3 Weighted(8 of 4, weights #7af97336fcf7129f, replace true, seed 1)
	// 2 1 0 4 3 1 3 0 Resize(Random(5, seed 1), 8)
	// 0 1 4 OrderFunc(3)
}

// Batches of similar lengths, so that little is padding: the longest sentence times the number of sentences is at most
// 12. What a BatchSampler gives, Pad makes a matrix of.
func ExampleBuckets() {
	sentences := Slice[[]rune]{[]rune("hello"), []rune("I"), []rune("go"), []rune("world"), []rune("a"), []rune("of"), []rune("loaders")}
	lengths := make([]int, len(sentences))
	for i, s := range sentences {
		lengths[i] = len(s)
	}
	var sampler BatchSampler
	sampler, err := Buckets(lengths, 12, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(sentences, Pad('.'), Options{BatchSampler: sampler})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		var ragged Ragged[rune] = batch
		fmt.Printf("%v %v %q\n", ragged.Shape, ragged.Lengths, string(ragged.Data))
	}
	// Output:
	// [1 7] [7] "loaders"
	// [2 5] [5 5] "worldhello"
	// [2 2] [2 2] "goof"
	// [2 1] [1 1] "aI"
}

// Batches of a sampler, to build a batch sampler of one's own on: this one takes only every other.
func ExampleBatches() {
	all := Batches(Sequential(10), 3, false)
	batches := all.Batches(0)
	for k := 0; k < all.Len(); k += 2 {
		fmt.Println(batches(k))
	}
	// Output:
	// [0 1 2]
	// [6 7 8]
}

// A Collate of one's own makes batches of any type, here of the sum.
func ExampleCollate() {
	var sum Collate[int, int] = func(_ int, samples []int) (int, error) {
		total := 0
		for _, s := range samples {
			total += s
		}
		return total, nil
	}
	loader, err := New(Slice[int]{1, 2, 3, 4, 5, 6}, sum, Options{BatchSize: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch)
	}
	// Output:
	// 6
	// 15
}

// Split is random_split, with torch's own numbers; Subset takes given samples, and Concat puts data sets together.
func ExampleSplit() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	parts, err := Split(data, 1, 7, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	few, err := Subset(data, []int{9, 0})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range []Dataset[int]{parts[0], parts[1], Concat(few, parts[1])} {
		var all []int
		for i := range d.Len() {
			v, err := d.Get(context.Background(), i)
			if err != nil {
				fmt.Println(err)
				return
			}
			all = append(all, v)
		}
		fmt.Println(all)
	}
	// Output:
	// [5 6 1 2 0 8 9]
	// [3 7 4]
	// [9 0 3 7 4]
}

// Files of any file system, here one in memory, decoded as they are fetched.
func ExampleFiles() {
	fsys := fstest.MapFS{
		"a.txt":     {Data: []byte("one")},
		"b/c.txt":   {Data: []byte("two")},
		"b/d.jpg":   {Data: []byte("not text")},
		"b/e/f.txt": {Data: []byte("three")},
	}
	files, err := Files(fsys, "**/*.txt")
	if err != nil {
		fmt.Println(err)
		return
	}
	words := Transform(files, func(ctx context.Context, f File) (string, error) {
		return f.Name + ": " + strings.ToUpper(string(f.Data)), nil
	})
	loader, err := New(words, List[string], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch)
	}
	// Output:
	// [a.txt: ONE b/c.txt: TWO]
	// [b/e/f.txt: THREE]
}

// Images in a folder for each class.
func ExampleFolder() {
	fsys := fstest.MapFS{
		"cat/1.png": {Data: []byte("meow")},
		"cat/2.png": {Data: []byte("purr")},
		"dog/1.png": {Data: []byte("woof")},
	}
	data, classes, err := Folder(fsys)
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, List[Pair[File, int]], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch[0].First.Name, classes[batch[0].Second], string(batch[0].First.Data))
	}
	// Output:
	// cat/1.png cat meow
	// cat/2.png cat purr
	// dog/1.png dog woof
}

// What is slow or fails now and then: try up to three times, and keep what has been fetched.
func ExampleCache() {
	calls := 0
	remote := Func(2, func(ctx context.Context, i int) (string, error) {
		if calls++; calls == 1 {
			return "", io.ErrUnexpectedEOF
		}
		return fmt.Sprint("sample ", i), nil
	})
	loader, err := New(Cache(Retry(remote, 3, time.Millisecond)), List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			fmt.Println(batch, err, calls, "calls")
		}
	}
	// Output:
	// [sample 0 sample 1] <nil> 3 calls
	// [sample 0 sample 1] <nil> 3 calls
	// [sample 0 sample 1] <nil> 3 calls
}

// A data set that fetches a batch in one call, as from a data base.
type table struct{ Slice[string] }

func (t table) GetBatch(ctx context.Context, ids []int) ([]string, error) {
	fmt.Println("SELECT … WHERE id IN", ids)
	rows := make([]string, len(ids))
	for j, id := range ids {
		rows[j] = t.Slice[id]
	}
	return rows, nil
}

func ExampleBatchGetter() {
	var data Dataset[string] = table{Slice[string]{"a", "b", "c"}}
	_, ok := data.(BatchGetter[string])
	loader, err := New(data, List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch, ok)
	}
	// Output:
	// SELECT … WHERE id IN [0 1]
	// [a b] true
	// SELECT … WHERE id IN [2]
	// [c] true
}

// evaluate takes any loader of batches of numbers.
func evaluate(loader *DataLoader[[]int]) (sum int, err error) {
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			return 0, err
		}
		for _, v := range batch {
			sum += v
		}
	}
	return sum, nil
}

func ExampleDataLoader() {
	loader, err := New(Slice[int]{1, 2, 3, 4}, List[int], Options{BatchSize: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	var lists *DataLoader[[]int] = loader // the type of the samples is gone, that of the batches stays
	fmt.Println(evaluate(lists))
	// Output: 10 <nil>
}

// The RFC's three small parts, each a stage of its own: list files, load them, decode them. Loading is in workers and
// ahead of decoding.
func ExampleMap() {
	fsys := fstest.MapFS{"a.txt": {Data: []byte("7")}, "b.txt": {Data: []byte("8")}, "c.txt": {Data: []byte("9")}}
	names, err := fs.Glob(fsys, "*.txt")
	if err != nil {
		fmt.Println(err)
		return
	}
	list := Map(Indices(Sequential(len(names))), 0, func(_ context.Context, i int) (string, error) { return names[i], nil })
	load := Map(list, 2, func(_ context.Context, name string) ([]byte, error) { return fs.ReadFile(fsys, name) }).Prefetch(10)
	decode := Map(load, 0, func(_ context.Context, data []byte) (int, error) { return strconv.Atoi(string(data)) })
	for number, err := range decode.Epoch(context.Background(), 0) {
		fmt.Println(number, err)
	}
	// Output:
	// 7 <nil>
	// 8 <nil>
	// 9 <nil>
}

// The RFC's own program: three copies of one source, two of them mapped, joined in turn. A stream is a definition, so a
// copy is to use it again.
func ExampleMix() {
	numbers := Indices(Sequential(3))
	times := func(factor int) Stream[int] {
		return Map(numbers, 0, func(_ context.Context, i int) (int, error) { return i * factor, nil })
	}
	for i := range Mix(MixOptions{Stop: StopAtLast}, numbers, times(100), times(111)).Epoch(context.Background(), 0) {
		fmt.Print(i, " ")
	}
	// Output: 0 0 0 1 100 111 2 200 222
}

// Data sets mixed by weight. How a mix ends is one of four rules.
func ExampleMixOptions() {
	letters := func(text string) Stream[string] {
		return Map(Indices(Sequential(len(text))), 0, func(_ context.Context, i int) (string, error) { return text[i : i+1], nil })
	}
	var stop Stop
	for _, stop = range []Stop{StopAtFirst, StopAtLast, CycleUntilLast, CycleForever} {
		mix := Mix(MixOptions{Weights: []float64{3, 1}, Seed: 4, Stop: stop}, letters("abcdef"), letters("XYZ")).Take(24)
		for letter := range mix.Epoch(context.Background(), 0) {
			fmt.Print(letter)
		}
		fmt.Println()
	}
	// Output:
	// abXcdef
	// abXcdefYZ
	// abXcdefabcYdefaZ
	// abXcdefabcYdefaZXbcdefaY
}

// Batch sizes that differ between phases: fetch in batches of 4, shuffle the samples, train in batches of 3.
func ExampleUnbatch() {
	fetched := Map(Batch(Indices(Sequential(10)), 4, List[int]), 2, func(_ context.Context, rows []int) ([]string, error) {
		samples := make([]string, len(rows)) // one query for all of them
		for j, row := range rows {
			samples[j] = fmt.Sprint("row ", row)
		}
		return samples, nil
	})
	for batch, err := range Batch(Unbatch(fetched), 3, List[string]).Epoch(context.Background(), 0) {
		fmt.Println(batch, err)
	}
	// Output:
	// [row 0 row 1 row 2] <nil>
	// [row 3 row 4 row 5] <nil>
	// [row 6 row 7 row 8] <nil>
	// [row 9] <nil>
}

// A pipeline of one's own gives the batches of the classic loader. Its first one comes sooner, because all workers fetch
// the same batch. Pad makes padded batches in the same way.
func ExampleBatch() {
	data := Slice[string]{"a", "b", "c", "d", "e"}
	sampler := Random(data.Len(), 1)
	pipeline := Batch(Map(Indices(sampler), 8, data.Get), 2, List[string])
	loader, err := New(data, List[string], Options{Sampler: sampler, BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for both := range Zip(pipeline, loader.Stream()).Epoch(context.Background(), 0) {
		fmt.Println(both.First, both.Second)
	}
	words := Map(Indices(Sequential(3)), 0, func(_ context.Context, i int) ([]rune, error) {
		return []rune([]string{"pad", "to", "longest"}[i]), nil
	})
	for padded := range Batch(words, 2, Pad('.')).Epoch(context.Background(), 0) {
		fmt.Println(padded.Shape, padded.Lengths, string(padded.Data))
	}
	// Output:
	// [c b] [c b]
	// [a e] [a e]
	// [d] [d]
	// [2 3] [3 2] padto.
	// [1 7] [7] longest
}

// Collate as a stage of its own, after a stage that only makes lists: here in workers.
func ExampleBatch_collate() {
	lists := Batch(Indices(Sequential(5)), 2, List[int])
	sums := Map(lists, 2, func(_ context.Context, list []int) (sum int, err error) {
		for _, i := range list {
			sum += i
		}
		return sum, nil
	})
	for sum, err := range sums.Epoch(context.Background(), 0) {
		fmt.Println(sum, err)
	}
	// Output:
	// 1 <nil>
	// 5 <nil>
	// 4 <nil>
}

// A checkpoint in the middle of any composition: here of a shuffled, filtered and mapped sequence, read ahead.
func ExampleFromSeq() {
	lines := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { // open the file here, and close it when this returns
			for _, line := range strings.Fields("one two three four five six seven eight") {
				if !yield(line, nil) {
					return
				}
			}
		}
	})
	long := lines.Shuffle(4, 1).Filter(func(s string) bool { return len(s) > 3 })
	upper := Map(long, 2, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil }).Prefetch(3)

	var at Cursor
	for s := range upper.Run(context.Background(), &at) {
		fmt.Print(s, " ")
		if at.Pos >= 5 {
			break
		}
	}
	saved, err := json.Marshal(at)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("|", string(saved))
	var resumed Cursor
	if err := json.Unmarshal(saved, &resumed); err != nil {
		fmt.Println(err)
		return
	}
	for s := range upper.Run(context.Background(), &resumed) {
		fmt.Print(s, " ")
	}
	fmt.Println("| then epoch", resumed.Epoch)
	// Output:
	// THREE FIVE FOUR | {"epoch":0,"pos":5,"state":{"by":"Shuffle(4, seed 1)","n":2,"m":1,"source":{"epoch":0,"pos":3,"state":{"by":"FromSeq"}},"end":{"epoch":0,"pos":7,"state":{"by":"FromSeq"}}}}
	// SEVEN EIGHT | then epoch 1
}

// Streams one after the other, or side by side; repeated, cut off, and dealt to ranks.
func ExampleChain() {
	low := Indices(Sequential(3))
	high := Map(low, 0, func(_ context.Context, i int) (int, error) { return 10 + i, nil })
	show := func(s Stream[int]) {
		var all []int
		for i := range s.Epoch(context.Background(), 0) {
			all = append(all, i)
		}
		fmt.Println(all)
	}
	show(Chain(low, high))
	show(low.Repeat(2))
	show(low.Repeat(0).Take(8)) // endless, but for Take
	show(Chain(low, high).Shard(Shard{Index: 1, Count: 2}))
	for pair := range Zip(low, high).Epoch(context.Background(), 0) {
		fmt.Print(pair, " ")
	}
	// Output:
	// [0 1 2 10 11 12]
	// [0 1 2 0 1 2]
	// [0 1 2 0 1 2 0 1]
	// [1 10 12]
	// {0 10} {1 11} {2 12}
}

// Sharding by the framework, which the source does not know about, and a part in a goroutine of its own. Nothing is opened before the
// first item is asked for.
func ExampleStream_Prefetch() {
	source := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			fmt.Println("opened")
			for i := range 6 {
				if !yield(i, nil) {
					return
				}
			}
		}
	})
	part := source.Shard(Shard{Index: 0, Count: 2}).Prefetch(2)
	fmt.Println("defined")
	for i := range part.Epoch(context.Background(), 0) {
		fmt.Println(i)
	}
	// Output:
	// defined
	// opened
	// 0
	// 2
	// 4
}

// Errors tell where they come from, and the items after them come.
func ExampleStream_Filter() {
	parse := Map(Indices(Sequential(4)), 2, func(_ context.Context, i int) (int, error) {
		return strconv.Atoi([]string{"7", "8", "nine", "10"}[i])
	})
	for n, err := range parse.Filter(func(n int) bool { return n != 8 }).Epoch(context.Background(), 0) {
		fmt.Println(n, err)
	}
	// Output:
	// 7 <nil>
	// 0 dataloader: epoch 0, the item before pos 3: Map: strconv.Atoi: parsing "nine": invalid syntax
	// 10 <nil>
}

// Training on images.

var update = flag.Bool("update", false, "rewrite the files in testdata")

// digitFonts has the ways to write each digit. A way is strokes, a stroke is points, and a point is its
// column, 0 to 7 from the left, and its row, 0 to 9 from the top. A stroke after "~" is a curve, which its
// points draw towards them.
var digitFonts = [10][]string{
	{"~30 00 09 69 60 30", "~30 10 19 59 50 30, 51 18", "~40 10 03 07 29 49 66 62 40"},
	{"30 39", "12 30 39", "12 30 39, 19 59", "~50 40 29"},
	{"~02 00 60 64 09, 09 69", "00 60 64 05 09 69", "~02 10 60 63 28 09 07 27 59 68"},
	{"~01 10 60 64 24, ~24 64 69 19 08", "00 60 24, ~24 64 69 19 08", "~01 00 60 54 14, ~14 75 69 09 07"},
	{"10 06 66, 43 49", "49 40 06 66", "00 04 64, 60 69", "~10 02 06 24 65, ~61 54 49"},
	{"60 10 04, ~04 63 69 09 08", "60 00 04 64 69 09", "~60 10 11 04, ~04 53 65 69 29 07"},
	{"~50 00 09 69 64 04 06", "~41 15 09 69 64 24 06", "~61 60 00 09 69 65 14 06", "~30 04 09 59 65 25 18"},
	{"00 60 29", "00 60 29, 15 55", "02 00 60, ~60 34 39", "~01 10 50 60, 60 19, 25 64"},
	{"~34 04 00 60 64 34, ~34 04 09 69 64 34", "~61 50 00 03 66 69 09 06 62 60", "~34 14 10 50 54 34, ~34 04 09 69 64 34"},
	{"~62 60 00 05 65 62, 62 69", "~63 60 00 05 65 63, ~62 69 29 08", "~62 50 00 04 35 62, 62 39"},
}

// drawDigits draws the images of digits.zip, by their names.
func drawDigits() map[string]*image.Gray {
	images := map[string]*image.Gray{}
	rng := rand.New(rand.NewPCG(1, 2))
	for digit, font := range digitFonts {
		draw := func(folder string, n int) {
			for i := range n {
				images[fmt.Sprintf("%s/%d/%03d.png", folder, digit, i)] = drawDigit(font[rng.IntN(len(font))], rng)
			}
		}
		draw("train", 55)
		draw("test", 25)
	}
	return images
}

// drawDigit draws one way to write a digit as a hand does it: a bit aside, leaning, turned, in one size or
// another, with some pen and some ink, on paper that is not clean.
func drawDigit(strokes string, rng *rand.Rand) *image.Gray {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	var ( // points are complex numbers, the unit is a pixel
		wide, high = between(0.95, 1.35), between(1, 1.35) // of a column and a row
		lean       = between(-0.2, 0.3)
		turn       = cmplx.Rect(1, between(-0.1, 0.1))
		centre     = complex(between(6.5, 8.5), between(6.5, 8.5))
		pen        = between(0.5, 1.1) // half as thick as a stroke
		ink        = between(150, 255)
	)
	var segments [][2]complex128
	for stroke := range strings.SplitSeq(strokes, ", ") {
		stroke, curved := strings.CutPrefix(stroke, "~")
		var line []complex128
		for point := range strings.FieldsSeq(stroke) {
			x, y := wide*(float64(point[0]-'0')-3), high*(float64(point[1]-'0')-4.5)
			line = append(line, centre+turn*complex(x-lean*y, y))
		}
		if curved {
			line = smooth(smooth(smooth(line)))
		}
		for i, b := range line[1:] {
			segments = append(segments, [2]complex128{line[i], b})
		}
	}
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for y := range 16 {
		for x := range 16 {
			off := math.Inf(1) // from the nearest stroke
			for _, s := range segments {
				off = min(off, distance(complex(float64(x), float64(y)), s[0], s[1]))
			}
			covered := min(max(pen-off+0.5, 0), 1)
			img.SetGray(x, y, color.Gray{Y: uint8(math.Round(ink * covered))})
		}
	}
	for range rng.IntN(8) {
		img.Pix[rng.IntN(len(img.Pix))] = uint8(rng.IntN(256))
	}
	return img
}

// smooth cuts the corners of a line, as Chaikin does; its ends stay.
func smooth(line []complex128) []complex128 {
	last := len(line) - 1
	cut := []complex128{line[0]}
	for i, b := range line[1:] {
		cut = append(cut, 0.75*line[i]+0.25*b, 0.25*line[i]+0.75*b)
	}
	return append(cut, line[last])
}

// distance returns how far p is from the segment between a and b.
func distance(p, a, b complex128) float64 {
	p, b = p-a, b-a
	along := (real(p)*real(b) + imag(p)*imag(b)) / (real(b)*real(b) + imag(b)*imag(b))
	return cmplx.Abs(p - complex(min(max(along, 0), 1), 0)*b)
}

// zipDigits packs images. PNG has compressed them, so they are stored, and raw, which for so small files
// saves a lot.
func zipDigits(images map[string]*image.Gray) ([]byte, error) {
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		var data bytes.Buffer
		if err := encoder.Encode(&data, images[name]); err != nil {
			return nil, err
		}
		size := uint64(data.Len())
		f, err := w.CreateRaw(&zip.FileHeader{
			Name: name, CRC32: crc32.ChecksumIEEE(data.Bytes()), CompressedSize64: size, UncompressedSize64: size,
		})
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(data.Bytes()); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

// TestDigits draws digits.zip again and compares. Only the pixels count: the compressed bytes may differ
// from one version of Go to the next.
func TestDigits(t *testing.T) {
	images := drawDigits()
	if *update {
		packed, err := zipDigits(images)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/digits.zip", packed, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if len(archive.File) != len(images) {
		t.Errorf("%d files, want %d", len(archive.File), len(images))
	}
	for _, file := range archive.File {
		want, ok := images[file.Name]
		if !ok {
			t.Errorf("%s: want no such file", file.Name)
			continue
		}
		delete(images, file.Name) // so that a second one of the name is an error
		r, err := file.Open()
		if err != nil {
			t.Errorf("%s: %v", file.Name, err)
			continue
		}
		img, err := png.Decode(r)
		if err != nil {
			t.Errorf("%s: %v", file.Name, err)
			continue
		}
		got, ok := img.(*image.Gray)
		if !ok || got.Rect != want.Rect {
			t.Errorf("%s: %T of %v, want %T of %v", file.Name, img, img.Bounds(), want, want.Rect)
			continue
		}
		for i := range want.Pix {
			// A machine that fuses multiplication and addition skips a rounding of others. That may be the
			// difference between 99.4999… and 99.5, hence one level, but never two.
			if d := int(got.Pix[i]) - int(want.Pix[i]); d < -1 || d > 1 {
				t.Errorf("%s: pixel %d is %d, want %d", file.Name, i, got.Pix[i], want.Pix[i])
				break
			}
		}
	}
}

// A digitImage is an image of the shape [16 16], from 0 for paper to 1 for ink, and the digit that it shows.
type digitImage = Pair[Tensor[float32], int]

// decodeDigit makes an image of a PNG file.
func decodeDigit(_ context.Context, file Pair[File, int]) (digitImage, error) {
	img, err := png.Decode(bytes.NewReader(file.First.Data))
	if err != nil {
		return digitImage{}, fmt.Errorf("%s: %w", file.First.Name, err)
	}
	gray, ok := img.(*image.Gray)
	if !ok {
		return digitImage{}, fmt.Errorf("%s: %T, want %T", file.First.Name, img, gray)
	}
	pixels := make([]float32, len(gray.Pix))
	for i, p := range gray.Pix {
		pixels[i] = float32(p) / 255
	}
	return digitImage{
		First:  Tensor[float32]{Data: pixels, Shape: []int{gray.Rect.Dy(), gray.Rect.Dx()}},
		Second: file.Second,
	}, nil
}

// rollDigit moves an image by up to a pixel up or down and left or right, in every epoch anew. What leaves it
// on one side comes back on the other.
func rollDigit(ctx context.Context, digit digitImage) (digitImage, error) {
	rng, width, pixels := Rand(ctx), digit.First.Shape[1], digit.First.Data
	k := (rng.IntN(3)-1)*width + rng.IntN(3) - 1
	k = (k + len(pixels)) % len(pixels)
	digit.First.Data = slices.Concat(pixels[k:], pixels[:k]) // a copy; pixels are the Cache's
	return digit, nil
}

const digitPixels = 16 * 16

// A softmax is a model that tells digits apart: for each, the weights of the pixels, and last the bias.
type softmax [10][digitPixels + 1]float64

// classify returns the probability of each digit, for image i of a batch, and the most probable digit.
func (m *softmax) classify(images Tensor[float32], i int) (p [10]float64, best int) {
	for d := range p {
		w := &m[d]
		p[d] = w[digitPixels]
		for j, x := range images.Data[i*digitPixels : (i+1)*digitPixels] {
			p[d] += w[j] * float64(x)
		}
	}
	top, sum := slices.Max(p[:]), 0.0
	best = slices.Index(p[:], top)
	for d := range p {
		p[d] = math.Exp(p[d] - top) // at most 1, and so never too large
		sum += p[d]
	}
	for d := range p {
		p[d] /= sum
	}
	return p, best
}

// learn takes one step down the gradient of a batch's cross-entropy, summed over its images.
func (m *softmax) learn(images Tensor[float32], labels []int, rate float64) {
	var gradient softmax
	for i, label := range labels {
		p, _ := m.classify(images, i)
		p[label]--
		for d := range p {
			g := &gradient[d]
			for j, x := range images.Data[i*digitPixels : (i+1)*digitPixels] {
				g[j] += p[d] * float64(x)
			}
			g[digitPixels] += p[d]
		}
	}
	for d := range m {
		for j := range m[d] {
			m[d][j] -= rate * gradient[d][j]
		}
	}
}

// Training that was interrupted in the middle of an epoch goes on as if nothing had happened, in another
// process, with another number of workers: the same images come in the same order, moved at random by the
// same pixels, and make the same weights.
func Example_training() {
	ctx := context.Background()
	archive, err := zip.OpenReader("testdata/digits.zip") // train/0/000.png to test/9/024.png
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()

	// open returns the images in a folder of the archive. Each is decoded once, by a worker.
	open := func(folder string) (Dataset[digitImage], error) {
		sub, err := fs.Sub(archive, folder)
		if err != nil {
			return nil, err
		}
		files, _, err := Folder(sub) // the classes are "0" to "9", so their numbers are the digits
		if err != nil {
			return nil, err
		}
		return Cache(Transform(files, decodeDigit)), nil
	}

	// A checkpoint is all that a training process must know of those before it.
	type checkpoint struct {
		Model softmax
		At    Cursor
	}

	// train is such a process. It goes on from a saved checkpoint until epoch 30, or until it is interrupted
	// after a number of batches, and saves another one.
	train := func(saved []byte, workers, batches int) ([]byte, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return nil, err
		}
		digits, err := open("train")
		if err != nil {
			return nil, err
		}
		loader, err := New(Transform(digits, rollDigit), CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Shuffle: true, Seed: 1, Workers: workers,
		})
		if err != nil {
			return nil, err
		}
		for c.At.Epoch < 30 {
			for batch, err := range loader.Run(ctx, &c.At) {
				if err != nil {
					return nil, err
				}
				c.Model.learn(batch.First, batch.Second, 0.01)
				loader.Recycle(batch)
				if batches--; batches == 0 {
					return json.Marshal(c)
				}
			}
		}
		return json.Marshal(c)
	}

	// accuracy is the share of the test images that a saved model knows.
	accuracy := func(saved []byte) (float64, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return 0, err
		}
		digits, err := open("test")
		if err != nil {
			return 0, err
		}
		loader, err := New(digits, CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Workers: 2, Tail: UnevenTail, // each image once, on any number of ranks
		})
		if err != nil {
			return 0, err
		}
		known := 0
		for batch, err := range loader.Epoch(ctx, 0) {
			if err != nil {
				return 0, err
			}
			for i, label := range batch.Second {
				if _, best := c.Model.classify(batch.First, i); best == label {
					known++
				}
			}
			loader.Recycle(batch)
		}
		return float64(known) / float64(digits.Len()), nil
	}

	start := []byte("{}")
	whole, err := train(start, 2, -1) // never interrupted
	if err != nil {
		log.Fatal(err)
	}
	half, err := train(start, 2, 260) // interrupted in epoch 14, after 8 of 18 batches
	if err != nil {
		log.Fatal(err)
	}
	rest, err := train(half, 3, -1) // goes on there
	if err != nil {
		log.Fatal(err)
	}
	share, err := accuracy(rest)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f %% of the test images recognized\n", 100*share)
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))
	// Output:
	// 96 % of the test images recognized
	// the same weights as without the interruption: true
}

// The train digits of testdata/digits.zip become tar shards, from which a model is then trained: a stream of
// records, shuffled, decoded by several goroutines, in batches. Its cursor resumes in the middle of a shard, of
// the shuffle and of an epoch.
func Example_trainingFromTar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "digits")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := packDigits(ctx, filepath.Join(dir, "train-%02d.tar"), 6); err != nil {
		log.Fatal(err)
	}
	shards, err := Expand(filepath.Join(dir, "train-{00..05}.tar"))
	if err != nil {
		log.Fatal(err)
	}

	// stream is the pipeline, for any number of workers.
	stream := func(workers int) Stream[Pair[Tensor[float32], []int]] {
		records, err := Tar(shards, TarOptions{Shuffle: true, Seed: 1})
		if err != nil {
			log.Fatal(err)
		}
		digits := Map(records.Shuffle(200, 2), workers, func(ctx context.Context, r Record) (digitImage, error) {
			label, err := Decode("cls", r.Get("cls"))
			if err != nil {
				return digitImage{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
			}
			digit, err := decodeDigit(ctx, Pair[File, int]{File{r.Key, r.Get("png")}, label.(int)})
			if err != nil {
				return digitImage{}, err
			}
			return rollDigit(ctx, digit)
		})
		return Batch(digits, 32, CollatePair(Stack[float32], List[int])).Prefetch(2)
	}

	type checkpoint struct {
		Model softmax
		At    Cursor
	}
	// train goes on from a checkpoint until epoch 20, or through a number of batches.
	train := func(saved []byte, workers, batches int) []byte {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < 20 && batches != 0 {
			for batch, err := range stream(workers).Run(ctx, &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				c.Model.learn(batch.First, batch.Second, 0.01)
				if batches--; batches == 0 {
					break
				}
			}
		}
		saved, err := json.Marshal(c)
		if err != nil {
			log.Fatal(err)
		}
		return saved
	}
	whole := train([]byte("{}"), 2, -1)
	half := train([]byte("{}"), 0, 130)
	rest := train(half, 3, -1)
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))

	// The same shards as a data set, to be read in any order.
	data, err := OpenTar(shards...)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	var c checkpoint
	if err := json.Unmarshal(rest, &c); err != nil {
		log.Fatal(err)
	}
	known := 0
	for i := range data.Len() {
		r, err := data.Get(ctx, i)
		if err != nil {
			log.Fatal(err)
		}
		digit, err := decodeDigit(ctx, Pair[File, int]{First: File{r.Key, r.Get("png")}})
		if err != nil {
			log.Fatal(err)
		}
		if _, best := c.Model.classify(digit.First, 0); strconv.Itoa(best) == string(r.Get("cls")) {
			known++
		}
	}
	fmt.Printf("%d of %d training images recognized\n", known, data.Len())
	// Output:
	// the same weights as without the interruption: true
	// 528 of 550 training images recognized
}

// packDigits deals the train digits out to tar shards, in random order: as a rule that is done once, because shards are
// read from front to back.
func packDigits(ctx context.Context, pattern string, shards int) error {
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		return err
	}
	defer archive.Close()
	train, err := fs.Sub(archive, "train")
	if err != nil {
		return err
	}
	files, classes, err := Folder(train)
	if err != nil {
		return err
	}
	for s := range shards {
		out, err := os.Create(fmt.Sprintf(pattern, s))
		if err != nil {
			return err
		}
		w := NewTarWriter(out)
		for i := range Indices(Random(files.Len(), 7)).Shard(Shard{s, shards}).Epoch(ctx, 0) {
			file, err := files.Get(ctx, i)
			if err != nil {
				return err
			}
			class := classes[file.Second]
			if err := w.Write(Record{
				Key:   class + "/" + strings.TrimSuffix(path.Base(file.First.Name), ".png"),
				Files: []File{{"png", file.First.Data}, {"cls", []byte(class)}},
			}); err != nil {
				return err
			}
		}
		if err := errors.Join(w.Close(), out.Close()); err != nil {
			return err
		}
	}
	return nil
}

// pack makes a tar shard in a new folder.
func pack(name string, records ...Record) (path string, err error) {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	w := NewTarWriter(out)
	for _, r := range records {
		if err := w.Write(r); err != nil {
			return "", err
		}
	}
	return path, errors.Join(w.Close(), out.Close())
}

// A shard that has been cut gives the records that are whole, and then an error; the next shard follows.
func ExampleTar() {
	shard, err := pack("train-0.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}, {"cls", []byte("0")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}, {"cls", []byte("1")}}},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(shard))
	whole, err := os.ReadFile(shard)
	if err != nil {
		log.Fatal(err)
	}
	cut := filepath.Join(filepath.Dir(shard), "train-1.tar")
	if err := os.WriteFile(cut, whole[:3000], 0o666); err != nil {
		log.Fatal(err)
	}

	records, err := Tar([]string{cut, shard}, TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		var bad *TarError
		if errors.As(err, &bad) {
			fmt.Println("skipping the rest of", filepath.Base(bad.Shard), "from", bad.Entry, "on")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s %s\n", r.Key, r.Get("cls"), r.Get("txt"))
	}
	// Output:
	// cat: 0 meow
	// skipping the rest of train-1.tar from dog.cls on
	// cat: 0 meow
	// dog: 1 woof
}

// A shard is made of records, here in memory. Records that could not be read back as they are do not get into it.
func ExampleTarWriter() {
	put := func(w *TarWriter, key, text string) error {
		return w.Write(Record{Key: key, Files: []File{{"txt", []byte(text)}, {"cls", []byte("0")}}})
	}
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	if err := put(w, "pets/cat", "meow"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(put(w, "pets/dog.2", "woof"))
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	for r := tar.NewReader(&shard); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(h.Name, h.Size)
	}
	// Output:
	// dataloader: TarWriter: file "pets/dog.2.cls" of record "pets/dog.2" would be read as field "2.cls" of record "pets/dog"
	// pets/cat.cls 1
	// pets/cat.txt 4
}

// The records of shards by their index, for a loader that shuffles all of them. The index is made once.
func ExampleOpenTar() {
	shard, err := pack("train.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}}},
		Record{Key: "cow", Files: []File{{"txt", []byte("moo")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}}},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(shard))

	var data *TarDataset
	data, err = OpenTar(shard)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	if err := data.WriteIndex(); err != nil { // beside it; the next OpenTar need not read the shard
		log.Fatal(err)
	}
	loader, err := New(data, List[Record], Options{BatchSize: 2, Shuffle: true, Seed: 3, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range batch {
			fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
		}
	}
	// Output:
	// dog: woof
	// cow: moo
	// cat: meow
}

// Shards in a store that Open does not know, here a file system in memory. Requests that need a header, or an
// address that has to be signed anew, are opened in the same way.
func ExampleOpener() {
	store := fstest.MapFS{"bucket/train.tar": {Data: tarEntries("cat.txt=meow")}}
	var open Opener = func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		object, ok := strings.CutPrefix(name, "mem://")
		if !ok {
			return Open(ctx, name, offset)
		}
		file, err := store.Open(object)
		if err != nil {
			return nil, err
		}
		_, err = file.(io.Seeker).Seek(offset, io.SeekStart)
		return file, err
	}
	records, err := Tar([]string{"mem://bucket/train.tar"}, TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
	}
	// Output: cat: meow
}

func ExampleExpand() {
	shards, err := Expand("https://example.org/{train-{08..10},valid}.tar")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range shards {
		fmt.Println(name)
	}
	// Output:
	// https://example.org/train-08.tar
	// https://example.org/train-09.tar
	// https://example.org/train-10.tar
	// https://example.org/valid.tar
}

// A folder or an archive in, its files out, each decoded as far as the library can.
func ExampleDecode() {
	decoded := func(name string) (Stream[any], error) {
		if strings.HasSuffix(name, ".tar") {
			records, err := Tar([]string{name}, TarOptions{})
			if err != nil {
				return nil, err
			}
			files := Unbatch(Map(records, 0, func(_ context.Context, r Record) ([]File, error) { return r.Files, nil }))
			return Map(files, 2, func(_ context.Context, f File) (any, error) { return Decode(f.Name, f.Data) }), nil
		}
		files, err := Files(os.DirFS(name))
		if err != nil {
			return nil, err
		}
		return Map(Indices(Sequential(files.Len())), 2, func(ctx context.Context, i int) (any, error) {
			f, err := files.Get(ctx, i)
			if err != nil {
				return nil, err
			}
			return Decode(f.Name, f.Data)
		}), nil
	}

	archive, err := pack("pets.tar", Record{Key: "cat", Files: []File{{"json", []byte(`{"legs": 4}`)}, {"cls", []byte("0")}, {"txt", []byte("meow")}}})
	if err != nil {
		log.Fatal(err)
	}
	folder := filepath.Dir(archive)
	defer os.RemoveAll(folder)
	if err := os.Mkdir(filepath.Join(folder, "dog"), 0o777); err != nil {
		log.Fatal(err)
	}
	for name, text := range map[string]string{"dog.json": `{"legs": 4}`, "dog.cls": "1", "dog.txt": "woof"} {
		if err := os.WriteFile(filepath.Join(folder, "dog", name), []byte(text), 0o666); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{archive, filepath.Join(folder, "dog")} {
		stream, err := decoded(name)
		if err != nil {
			log.Fatal(err)
		}
		for value, err := range stream.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%T %v\n", value, value)
		}
	}
	// Output:
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
	// int 1
	// map[string]interface {} map[legs:4]
	// string woof
}

// A data set of one's own is a type with two methods.
type squares struct{ n int }

func (s squares) Len() int { return s.n }

func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
	x := float32(i)
	return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
}

func Example_datasetOfYourOwn() {
	loader, err := New(squares{5}, Stack[float32], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch := range loader.Epoch(context.Background(), 0) {
		fmt.Println(batch.Shape, batch.Data)
	}
	// Output:
	// [2 2] [0 0 1 1]
	// [2 2] [2 4 3 9]
	// [1 2] [4 16]
}

func Example_imageFolder() {
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		log.Fatal(err)
	}
	defer archive.Close()
	images, err := fs.Sub(archive, "train")
	if err != nil {
		log.Fatal(err)
	}
	if err := showImages(images); err != nil {
		log.Fatal(err)
	}
	// Output: [0 1 2 3 4 5 6 7 8 9] [64 16 16] 64
}

// showImages loads a batch of the images in fsys, which has a folder for each class.
func showImages(fsys fs.FS) error {
	files, classes, err := Folder(fsys) // os.DirFS("train") with cat/1.png, dog/1.png, …
	if err != nil {
		return err
	}
	images := Transform(files, func(ctx context.Context, f Pair[File, int]) (Pair[Tensor[float32], int], error) {
		img, err := Decode(f.First.Name, f.First.Data)
		if err != nil {
			return Pair[Tensor[float32], int]{}, err
		}
		return Pair[Tensor[float32], int]{First: pixels(img.(image.Image)), Second: f.Second}, nil
	})
	loader, err := New(images, CollatePair(Stack[float32], List[int]), Options{
		BatchSize: 64, Shuffle: true, Workers: runtime.NumCPU(),
	})
	if err != nil {
		return err
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			return err
		}
		fmt.Println(classes, batch.First.Shape, len(batch.Second))
		break
	}
	return nil
}

// pixels are the gray values of an image.
func pixels(img image.Image) Tensor[float32] {
	b := img.Bounds()
	t := Tensor[float32]{Shape: []int{b.Dy(), b.Dx()}}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			t.Data = append(t.Data, float32(color.GrayModel.Convert(img.At(x, y)).(color.Gray).Y)/255)
		}
	}
	return t
}

// A checkpoint is what a training process must save for the next one: its model, here a sum, and the cursor. It is written
// to another file and renamed, so that there is always a whole one.
func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.json")
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}

	train := func(steps int) error {
		var c struct {
			Sum int
			At  Cursor
		}
		saved, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(saved, &c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for c.At.Epoch < 2 {
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					return err
				}
				for _, x := range batch {
					c.Sum += x
				}
				if saved, err = json.Marshal(c); err == nil {
					err = os.WriteFile(name+".new", saved, 0o666)
				}
				if err = cmp.Or(err, os.Rename(name+".new", name)); err != nil {
					return err
				}
				if steps--; steps == 0 {
					return errors.New("interrupted")
				}
			}
		}
		fmt.Println("the sum of two epochs:", c.Sum)
		return nil
	}
	fmt.Println(train(2))
	fmt.Println(train(-1))
	// Output:
	// interrupted
	// the sum of two epochs: 30
	// <nil>
}

// What frameworks take is Data and Shape. This model is a function of such a pair; as for others,
//
//	GoMLX            tensors.FromFlatDataAndDimensions(batch.Data, batch.Shape...)
//	Gorgonia         tensor.New(tensor.WithShape(batch.Shape...), tensor.WithBacking(batch.Data))
//	onnxruntime_go   ort.NewTensor(ort.NewShape(shape...), batch.Data), with the shape as int64
//
// Whether they copy Data decides when the batch may be given back: those above that do not need it until their tensor
// has been used.
func ExampleTensor() {
	model := func(data []float32, shape ...int64) {
		fmt.Println(shape, data)
	}
	data := Slice[Tensor[float32]]{
		{Data: []float32{1, 2, 3, 4}, Shape: []int{2, 2}},
		{Data: []float32{5, 6, 7, 8}, Shape: []int{2, 2}},
	}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		var shape []int64
		for _, n := range batch.Shape {
			shape = append(shape, int64(n))
		}
		model(batch.Data, shape...)
		loader.Recycle(batch) // once the model is done with it
	}
	// Output: [2 2 2] [1 2 3 4 5 6 7 8]
}

// Where the time goes, in one line: loading takes five times as long as training, so that five workers keep up.
func ExampleStats() {
	data := Func(100, func(ctx context.Context, i int) (int, error) {
		time.Sleep(500 * time.Microsecond) // load
		return i, nil
	})
	stats := new(Stats)
	loader, err := New(data, List[int], Options{BatchSize: 10, Workers: 1, Trace: stats.Observe})
	if err != nil {
		log.Fatal(err)
	}
	for range loader.Epoch(context.Background(), 0) {
		time.Sleep(time.Millisecond) // train
	}
	line := stats.String() // here "10 batches, 100 samples (1600/s), …: the loader is the bottleneck, workers needed: 5"
	fmt.Println(line[:strings.Index(line, " (")])
	// Output: 10 batches, 100 samples
}

// On a terminal Progress(os.Stderr, …) shows a bar.
func ExampleProgress() {
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2})
	if err != nil {
		log.Fatal(err)
	}
	var shown strings.Builder
	for batch, err := range Progress(&shown, loader.Len(), loader.Epoch(context.Background(), 0)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	fmt.Println(strings.Fields(shown.String())[:2])
	// Output:
	// [1 2]
	// [3 4]
	// [5]
	// [3/3 100%]
}

// TestReadme takes the programs out of README.md, puts each into a module beside a copy of this package and runs it; and
// looks for the Examples, benchmarks and files that are named there.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte // of the source
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "dataloader"), 0o777), os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.org/trainer\n\ngo 1.25\n"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for _, name := range sources {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, data...); !strings.HasSuffix(name, "_test.go") {
			if err := os.WriteFile(filepath.Join(dir, "dataloader", name), data, 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
	programs := 0
	for _, block := range strings.Split(string(readme), "```go\n")[1:] {
		program, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(program, "package main\n") {
			t.Errorf("this is no program:\n%s", program)
			continue
		}
		programs++
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("go", "run", ".")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("program %d: %v\n%s", programs, err, out)
		}
	}
	if lines := bytes.Count(readme, []byte("\n")); programs < 3 || lines > 280 {
		t.Errorf("%d programs in %d lines", programs, lines)
	}
	for _, name := range regexp.MustCompile("`(Example|Test|Fuzz|Benchmark)\\w+`").FindAllString(string(readme), -1) {
		if name = strings.Trim(name, "`"); !bytes.Contains(all, []byte("func "+name+"(")) {
			t.Errorf("there is no %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([\w/.]+)\)`).FindAllStringSubmatch(string(readme), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Error(err)
		}
	}
}
