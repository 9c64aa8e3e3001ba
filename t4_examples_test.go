package dataloader

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"os"
	"os/exec"
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

// The Examples are the documentation. By what a reader wants to do:
//
//	begin              Example, ExampleNew_oneProcess, ExampleNew_outOfOrder, ExampleNew_inOrder
//	loop over batches  ExampleDataLoader_Epoch, ExampleDataLoader_Run, ExampleStream_Run_restartOrContinue, ExampleSampleError
//	save and resume    ExampleCursor, Example_checkpoint; train a model: Example_training, Example_trainingFromTar
//	have a data set    Example_datasetOfYourOwn, ExampleBatchGetter, ExampleFiles, ExampleFolder, ExampleRows, ExamplePairs
//	change them        ExampleRand, ExampleCache, ExampleSplit, ExampleDecode; images: Example_imageFolder
//	order them         ExampleSampler, ExampleTorchRandom, ExampleBatches, ExampleBuckets
//	share an epoch     ExampleShardFromEnv, ExampleTail
//	make batches       ExampleCollate, ExampleTensor, ExampleDataLoader_Recycle; evaluate: ExampleDataLoader, ExampleDataLoader_Batch
//	see what happens   ExampleStats, ExampleProgress, ExampleTiming, ExampleOptions_onError, ExamplePanicError
//	build a pipeline   ExampleFromSeq, ExampleMap, ExampleBatch, ExampleBatch_collate, ExampleUnbatch, ExampleStream_Filter,
//	                   ExampleStream_Prefetch, ExampleDataLoader_Stream; with a stream of your own: ExampleCursor_Load
//	join data sets     ExampleMix, ExampleMixOptions, ExampleChain
//	use tar shards     ExampleTar, ExampleOpenTar, ExampleTarWriter, ExampleOpener, ExampleExpand

// A data set, a loader and the training loop, with a checkpoint after every step.
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
			checkpoint, err := json.Marshal(at)
			if err != nil {
				fmt.Println(err)
				return
			}
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

// The classic loader's first stage: the calling goroutine loads each batch when the loop asks for it.
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
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.First.Shape, batch.Second)
	}
	// Output:
	// 3 batches
	// [8 100] [0 1 2 0 1 2 0 1]
	// [8 100] [2 0 1 2 0 1 2 0]
	// [4 100] [1 2 0 1]
}

// The second stage: workers load, and a batch is handed over as soon as it is ready. Batch 0 is slow and comes last.
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
	received := 0
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(batch)
		if received++; received == 5 {
			close(others)
		}
	}
	// Output: [1][2][3][4][5][0]
}

// The third stage, the default: workers load in any order, and batches are handed over in the sampler's order.
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(batch)
	}
	// Output: [0][1][2][3][4][5]
}

// The loop.

// An epoch has the same order each time, and the next epoch has another. There is nothing to reset.
func ExampleDataLoader_Epoch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 6, Shuffle: true, Seed: 42})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, epoch := range []int{0, 0, 1} {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("epoch", epoch, batch)
		}
	}
	// Output:
	// epoch 0 [5 4 0 2 3 1]
	// epoch 0 [5 4 0 2 3 1]
	// epoch 1 [1 2 0 4 3 5]
}

// The cursor is the position after the batch in hand, so the number of that batch follows from it.
func ExampleDataLoader_Run() {
	const batchSize = 2
	loader, err := New(Slice[string]{"a", "b", "c", "d", "e"}, List[string], Options{BatchSize: batchSize})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("epoch", at.Epoch, "batch", (at.Pos-1)/batchSize, "of", loader.Len(), batch)
	}
	// Output:
	// epoch 0 batch 0 of 3 [a b]
	// epoch 0 batch 1 of 3 [c d]
	// epoch 0 batch 2 of 3 [e]
}

// Epoch starts over in each new loop, as PyTorch's DataLoader does. Run continues at its cursor, as an iterator does.
func ExampleStream_Run_restartOrContinue() {
	loader, err := New(Slice[string]{"a", "b", "c", "d"}, List[string], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var at Cursor
	untilB := func(seq iter.Seq2[[]string, error]) {
		for batch, err := range seq {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Print(batch)
			if batch[0] == "b" {
				break
			}
		}
	}
	ctx := context.Background()
	untilB(loader.Epoch(ctx, 0))
	untilB(loader.Epoch(ctx, 0))
	fmt.Println(" starts over")
	untilB(loader.Run(ctx, &at))
	untilB(loader.Run(ctx, &at))
	fmt.Println(" continues; the next epoch is", at.Epoch)
	// Output:
	// [a][b][a][b] starts over
	// [a][b][c][d] continues; the next epoch is 1
}

// A batch that cannot be loaded is a *SampleError in its place, and the loop may skip it. Any other error is the last:
// the context has ended, or the cursor does not fit.
func ExampleSampleError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i == 5 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	train := func(ctx context.Context) error {
		var at Cursor
		for batch, err := range loader.Run(ctx, &at) {
			var bad *SampleError
			if errors.As(err, &bad) {
				fmt.Println("skipped batch", bad.Batch, "because of sample", bad.Index, "with", bad.Err)
				continue
			}
			if err != nil {
				return err
			}
			fmt.Println(batch)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(train(ctx))
	cancel()
	fmt.Println(train(ctx))
	// Output:
	// [0 1 2 3]
	// skipped batch 1 because of sample 5 with unexpected EOF
	// [8 9 10 11]
	// <nil>
	// context canceled
}

// Checkpoints and training.

// A cursor that was saved as JSON resumes the epoch in another process, with another number of workers and of ranks.
func ExampleCursor() {
	data := Func(24, func(ctx context.Context, i int) (int, error) { return i, nil })

	// load is such a process. It resumes a checkpoint, takes one step and returns the next checkpoint.
	load := func(rank, ranks, batchSize int, saved []byte) []byte {
		loader, err := New(data, List[int], Options{BatchSize: batchSize, Workers: ranks, Shard: Shard{Index: rank, Count: ranks}})
		if err != nil {
			fmt.Println(err)
			return nil
		}
		var at Cursor
		if err := json.Unmarshal(saved, &at); err != nil {
			fmt.Println(err)
			return nil
		}
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				fmt.Println(err)
				return nil
			}
			fmt.Println("rank", rank, "of", ranks, batch)
			break
		}
		saved, err = json.Marshal(at)
		if err != nil {
			fmt.Println(err)
		}
		return saved
	}
	start := []byte("{}")
	saved := load(0, 2, 4, start)
	fmt.Println("all ranks' checkpoints are equal:", bytes.Equal(saved, load(1, 2, 4, start)))
	fmt.Println(string(saved))
	load(0, 1, 8, saved)  // 1 rank with batches of 8 resumes 2 with batches of 4,
	for rank := range 4 { // and so do 4 with batches of 2
		load(rank, 4, 2, saved)
	}
	// Output:
	// rank 0 of 2 [0 2 4 6]
	// rank 1 of 2 [1 3 5 7]
	// all ranks' checkpoints are equal: true
	// {"epoch":0,"pos":8,"state":{"by":"Sequential(24)"}}
	// rank 0 of 1 [8 9 10 11 12 13 14 15]
	// rank 0 of 4 [8 12]
	// rank 1 of 4 [9 13]
	// rank 2 of 4 [10 14]
	// rank 3 of 4 [11 15]
}

// A checkpoint is what the next training process must know: the model, here a sum, and the cursor. It is written to
// another file and renamed, so that the file is always whole.
func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.json")
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Shuffle: true, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}

	type checkpoint struct {
		Sum int
		At  Cursor
	}
	save := func(c checkpoint) error {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+".new", data, 0o666); err != nil {
			return err
		}
		return os.Rename(name+".new", name)
	}
	load := func() (c checkpoint, err error) {
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return c, nil // the first process begins with the zero checkpoint
		}
		if err != nil {
			return c, err
		}
		return c, json.Unmarshal(data, &c)
	}

	// train is one process. It is interrupted after a number of steps.
	train := func(steps int) error {
		c, err := load()
		if err != nil {
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
				if err := save(c); err != nil {
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

// A model learns digits, and its training is interrupted in the middle of an epoch. Another process with another number
// of workers resumes it: the images come in the same order, are shifted at random by the same pixels, and make the same
// weights.
func Example_training() {
	archive, err := zip.OpenReader("testdata/digits.zip") // train/0/000.png to test/9/024.png
	if err != nil {
		fmt.Println(err)
		return
	}
	defer archive.Close()

	// A digit is an image of the shape [16 16], from 0 for paper to 1 for ink, and the digit that it shows.
	type digit = Pair[Tensor[float32], int]

	// decode makes a digit of a file and the number of its class.
	decode := func(_ context.Context, file Pair[File, int]) (digit, error) {
		img, err := png.Decode(bytes.NewReader(file.First.Data))
		if err != nil {
			return digit{}, fmt.Errorf("%s: %w", file.First.Name, err)
		}
		gray, ok := img.(*image.Gray)
		if !ok {
			return digit{}, fmt.Errorf("%s: %T, want %T", file.First.Name, img, gray)
		}
		pixels := make([]float32, len(gray.Pix))
		for i, p := range gray.Pix {
			pixels[i] = float32(p) / 255
		}
		return digit{Tensor[float32]{Data: pixels, Shape: []int{gray.Rect.Dy(), gray.Rect.Dx()}}, file.Second}, nil
	}

	// shift moves an image at random by up to a pixel in each direction. What leaves it on one side enters on the other.
	shift := func(ctx context.Context, d digit) (digit, error) {
		rng, width, pixels := Rand(ctx), d.First.Shape[1], d.First.Data
		k := (rng.IntN(3)-1)*width + rng.IntN(3) - 1
		k = (k + len(pixels)) % len(pixels)
		d.First.Data = slices.Concat(pixels[k:], pixels[:k]) // a copy, because the Cache keeps pixels
		return d, nil
	}

	// open returns the digits in a folder of the archive. Each is decoded once, by a worker.
	open := func(folder string) (Dataset[digit], error) {
		sub, err := fs.Sub(archive, folder)
		if err != nil {
			return nil, err
		}
		files, _, err := Folder(sub) // the classes are "0" to "9", so their numbers are the digits
		if err != nil {
			return nil, err
		}
		return Cache(Transform(files, decode)), nil
	}

	// The model is a softmax regression: a weight for each digit and pixel.
	type model [10][16 * 16]float64

	// predict returns the probability of each digit.
	predict := func(m *model, pixels []float32) (p [10]float64) {
		sum := 0.0
		for d := range p {
			for j, x := range pixels {
				p[d] += m[d][j] * float64(x)
			}
			p[d] = math.Exp(p[d])
			sum += p[d]
		}
		for d := range p {
			p[d] /= sum
		}
		return p
	}

	// learn takes a step down the gradient of the cross-entropy for each image of a batch.
	learn := func(m *model, images Tensor[float32], labels []int) {
		for i, label := range labels {
			pixels := images.Data[i*16*16 : (i+1)*16*16]
			p := predict(m, pixels)
			p[label]--
			for d := range p {
				for j, x := range pixels {
					m[d][j] -= 0.01 * p[d] * float64(x)
				}
			}
		}
	}

	// A checkpoint is all that a training process must know of the processes before it.
	type checkpoint struct {
		Model model
		At    Cursor
	}

	// train is such a process. It resumes a checkpoint, runs until epoch 30 or until it is interrupted after a number of
	// batches, and returns the next checkpoint.
	train := func(saved []byte, workers, batches int) ([]byte, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return nil, err
		}
		digits, err := open("train")
		if err != nil {
			return nil, err
		}
		loader, err := New(Transform(digits, shift), CollatePair(Stack[float32], List[int]), Options{
			BatchSize: 32, Shuffle: true, Seed: 1, Workers: workers,
		})
		if err != nil {
			return nil, err
		}
		for c.At.Epoch < 30 {
			for batch, err := range loader.Run(context.Background(), &c.At) {
				if err != nil {
					return nil, err
				}
				learn(&c.Model, batch.First, batch.Second)
				loader.Recycle(batch)
				if batches--; batches == 0 {
					return json.Marshal(c)
				}
			}
		}
		return json.Marshal(c)
	}

	// accuracy is the share of the test images that a saved model recognizes.
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
		recognized := 0
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				return 0, err
			}
			for i, label := range batch.Second {
				p := predict(&c.Model, batch.First.Data[i*16*16:(i+1)*16*16])
				if p[label] == slices.Max(p[:]) {
					recognized++
				}
			}
			loader.Recycle(batch)
		}
		return float64(recognized) / float64(digits.Len()), nil
	}

	whole, err := train([]byte("{}"), 2, -1) // never interrupted
	if err != nil {
		fmt.Println(err)
		return
	}
	half, err := train([]byte("{}"), 2, 260) // interrupted in epoch 14, after 8 of 18 batches
	if err != nil {
		fmt.Println(err)
		return
	}
	rest, err := train(half, 3, -1) // resumes there
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))
	share, err := accuracy(rest)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("more than 9 of 10 test images recognized:", share > 0.9)
	// Output:
	// the same weights as without the interruption: true
	// more than 9 of 10 test images recognized: true
}

// dataset.go: what the samples are.

// squares is the data set of the points (i, i²) for 0 <= i < n.
type squares struct{ n int }

func (s squares) Len() int { return s.n }

func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error) {
	x := float32(i)
	return Tensor[float32]{Data: []float32{x, x * x}, Shape: []int{2}}, nil
}

// A data set of your own is a type with two methods: here squares, with
//
//	func (s squares) Len() int
//	func (s squares) Get(ctx context.Context, i int) (Tensor[float32], error)
func Example_datasetOfYourOwn() {
	var data Dataset[Tensor[float32]] = squares{n: 5}
	loader, err := New(data, Stack[float32], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.Shape, batch.Data)
	}
	// Output:
	// [2 2] [0 0 1 1]
	// [2 2] [2 4 3 9]
	// [1 2] [4 16]
}

// table is a data set with a query for the samples of a whole batch.
type table struct {
	Dataset[string]
	query func(ids []int) ([]string, error)
}

func (t table) GetBatch(ctx context.Context, ids []int) ([]string, error) { return t.query(ids) }

// A data set with one more method fetches a batch in one call, as from a data base: here table, with
//
//	func (t table) GetBatch(ctx context.Context, ids []int) ([]string, error) { return t.query(ids) }
func ExampleBatchGetter() {
	rows := Slice[string]{"a", "b", "c"}
	data := table{rows, func(ids []int) (samples []string, err error) {
		fmt.Println("SELECT … WHERE id IN", ids)
		for _, id := range ids {
			samples = append(samples, rows[id])
		}
		return samples, nil
	}}
	var _ BatchGetter[string] = data // so the loader never calls Get
	loader, err := New(data, List[string], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// SELECT … WHERE id IN [0 1]
	// [a b]
	// SELECT … WHERE id IN [2]
	// [c]
}

// Files reads the files of any file system, here one in memory. Transform decodes each as it is fetched.
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// [a.txt: ONE b/c.txt: TWO]
	// [b/e/f.txt: THREE]
}

// Folder reads a tree with a folder for each class. A sample is a file and the number of its class.
func ExampleFolder() {
	data, classes, err := Folder(fstest.MapFS{
		"cat/1.png": {Data: []byte("meow")},
		"cat/2.png": {Data: []byte("purr")},
		"dog/1.png": {Data: []byte("woof")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, List[Pair[File, int]], Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		file, class := batch[0].First, batch[0].Second
		fmt.Println(file.Name, classes[class], string(file.Data))
	}
	// Output:
	// cat/1.png cat meow
	// cat/2.png cat purr
	// dog/1.png dog woof
}

// Rows are the samples of an arena loader: the features of all samples are one array, and a batch is a copy of some of
// its rows. Data without labels needs no Pair.
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("size", batch.Shape[0], "shape", batch.Shape, "dimensions", len(batch.Shape), batch.Data)
	}
	// Output:
	// size 2 shape [2 2] dimensions 2 [0 0 1 1]
	// size 2 shape [2 2] dimensions 2 [2 2 3 3]
	// size 1 shape [1 2] dimensions 2 [4 4]
}

// Pairs joins features and labels, which are two arrays. Their numbers of samples must be equal.
func ExamplePairs() {
	features, err1 := Rows(Tensor[float32]{Data: []float32{0, 0, 1, 1, 2, 2}, Shape: []int{3, 2}})
	labels, err2 := Rows(Tensor[int64]{Data: []int64{7, 8, 9}, Shape: []int{3}})
	data, err3 := Pairs(features, labels)
	loader, err4 := New(data, CollatePair(Stack[float32], Stack[int64]), Options{BatchSize: 3})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Shape, batch.Second.Data)
	}
	_, err := Pairs(features, Slice[int]{1, 2})
	fmt.Println(err)
	// Output:
	// [3 2] [0 0 1 1 2 2] [3] [7 8 9]
	// dataloader: Pairs: the first data set has 3 samples, the second 2; they must be equal
}

// Rand draws the same numbers for augmentation with any number of workers.
func ExampleRand() {
	data := Func(4, func(ctx context.Context, i int) (string, error) {
		flip := Rand(ctx).IntN(2) == 1
		angle := Rand(WithSeed(ctx, 2)).IntN(10) // from a second generator
		onWorker := Worker(ctx) >= 0
		return fmt.Sprint("image ", i, " flip ", flip, " angle ", angle, " on a worker ", onWorker), nil
	})
	for _, workers := range []int{0, 3} {
		loader, err := New(data, List[string], Options{Seed: 7, Workers: workers})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
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

// Retry calls Get again when it fails, up to three times in all. Cache keeps each sample, so later epochs call nothing.
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
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("epoch", epoch, batch, "after", calls, "calls")
		}
	}
	// Output:
	// epoch 0 [sample 0 sample 1] after 3 calls
	// epoch 1 [sample 0 sample 1] after 3 calls
	// epoch 2 [sample 0 sample 1] after 3 calls
}

// Split deals a data set out at random, with the numbers of torch's random_split. Subset takes the samples with given
// indices. Concat puts data sets one after the other.
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
	for _, part := range []Dataset[int]{parts[0], parts[1], Concat(few, parts[1])} {
		loader, err := New(part, List[int], Options{BatchSize: 10})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println(batch)
		}
	}
	// Output:
	// [5 6 1 2 0 8 9]
	// [3 7 4]
	// [9 0 3 7 4]
}

// sampler.go: in which order they come, and to whom.

// A sampler is a function of the epoch and the position. OrderFunc makes a sampler of any order that you compute.
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
		OrderFunc(3, func(epoch int) []int { return []int{epoch, 1, 4} }),
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

// TorchRandom gives each rank the samples of DistributedSampler, so that Go and Python jobs can share an epoch.
func ExampleTorchRandom() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for rank := range 3 {
		loader, err := New(data, List[int], Options{BatchSize: 4, Sampler: TorchRandom(10, 0), Shard: Shard{Index: rank, Count: 3}})
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("rank", rank, batch)
		}
	}
	// Output:
	// rank 0 [4 5 0 2]
	// rank 1 [1 3 8 4]
	// rank 2 [7 9 6 1]
}

// Batches cuts a sampler's order into batches, for batch samplers of your own. This loop takes every other batch.
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

// Buckets makes batches of sequences of similar length, for Pad to fill. A padded batch here takes at most 12 runes.
func ExampleBuckets() {
	var sentences Slice[[]rune]
	var lengths []int
	for _, s := range []string{"hello", "I", "go", "world", "a", "of", "loaders"} {
		sentences = append(sentences, []rune(s))
		lengths = append(lengths, len([]rune(s)))
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		var ragged Ragged[rune] = batch
		fmt.Printf("%v %v %q\n", ragged.Shape, ragged.Lengths, string(ragged.Data))
	}
	// Output:
	// [1 7] [7] "loaders"
	// [2 5] [5 5] "worldhello"
	// [2 2] [2 2] "goof"
	// [2 1] [1 1] "aI"
}

// ShardFromEnv reads the shard that torchrun, mpirun, srun or a Kubernetes indexed Job sets in the environment.
func ExampleShardFromEnv() {
	os.Setenv("RANK", "1") // as torchrun does
	os.Setenv("WORLD_SIZE", "4")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")
	shard, err := ShardFromEnv()
	if err != nil {
		fmt.Println(err)
		return
	}
	data := Slice[string]{"a", "b", "c", "d", "e", "f", "g", "h"}
	loader, err := New(data, List[string], Options{BatchSize: 2, Shard: shard})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("rank", shard.Index, "of", shard.Count, batch)
	}
	// Output: rank 1 of 4 [b f]
}

// Tail says how four ranks share an epoch of ten samples. PadTail repeats the first samples and DropTail leaves out the
// last, so that all ranks take the same number of steps: train with one of them. UnevenTail counts every sample once:
// evaluate with it.
func ExampleTail() {
	data := Slice[int]{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	names := map[Tail]string{PadTail: "pad", DropTail: "drop", UnevenTail: "uneven"}
	for _, tail := range []Tail{PadTail, DropTail, UnevenTail} {
		var steps [][]int
		for rank := range 4 {
			loader, err := New(data, List[int], Options{BatchSize: 3, Shard: Shard{Index: rank, Count: 4}, Tail: tail})
			if err != nil {
				fmt.Println(err)
				return
			}
			for batch, err := range loader.Epoch(context.Background(), 0) {
				if err != nil {
					fmt.Println(err)
					return
				}
				steps = append(steps, batch)
			}
		}
		fmt.Println(names[tail], steps)
	}
	// Output:
	// pad [[0 4 8] [1 5 9] [2 6 0] [3 7 1]]
	// drop [[0 4] [1 5] [2 6] [3 7]]
	// uneven [[0 4 8] [1 5 9] [2 6] [3 7]]
}

// batch.go: what shape a batch has.

// A Collate of your own makes batches of any type, here sums.
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// 6
	// 15
}

// Frameworks take the Data and the Shape of a Tensor:
//
//	GoMLX            tensors.FromFlatDataAndDimensions(batch.Data, batch.Shape...)
//	Gorgonia         tensor.New(tensor.WithShape(batch.Shape...), tensor.WithBacking(batch.Data))
//	onnxruntime_go   ort.NewTensor(ort.NewShape(shape...), batch.Data), with the shape as int64
//
// The model here is a function of the same arguments. Some frameworks copy Data and others do not, so recycle a batch when
// its tensor has been used.
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
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		var shape []int64
		for _, n := range batch.Shape {
			shape = append(shape, int64(n))
		}
		model(batch.Data, shape...)
		loader.Recycle(batch) // the model is done with it
	}
	// Output: [2 2 2] [1 2 3 4 5 6 7 8]
}

// worker.go: which goroutine loads.

// A panic in a worker is the error of its batch, with the stack.
func ExamplePanicError() {
	data := Func(3, func(ctx context.Context, i int) (string, error) {
		return []string{"a"}[i%2], nil // panics for sample 1
	})
	loader, err := New(data, List[string], Options{Workers: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		var bad *SampleError
		var bug *PanicError
		if errors.As(err, &bad) && errors.As(err, &bug) {
			fmt.Println(bug.Value, "in ExamplePanicError:", bytes.Contains(bug.Stack, []byte("ExamplePanicError")))
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// [a]
	// runtime error: index out of range [1] with length 1 in ExamplePanicError: true
	// [a]
}

// dataloader.go: all of it together.

// A DataLoader has the type of its batches only. A function that takes one works with data sets of all types.
func ExampleDataLoader() {
	evaluate := func(loader *DataLoader[[]int]) (sum int, err error) {
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
	loader, err := New(Slice[int]{1, 2, 3, 4}, List[int], Options{BatchSize: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(evaluate(loader))
	// Output: 10 <nil>
}

// Batch loads a batch by its number. It disturbs no training loop, so an evaluation may use it in the middle of one.
func ExampleDataLoader_Batch() {
	loader, err := New(Slice[int]{0, 1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		last, err := loader.Batch(ctx, 0, loader.Len()-1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("train", batch, "evaluate", last)
	}
	// Output:
	// train [0 1] evaluate [4 5]
	// train [2 3] evaluate [4 5]
	// train [4 5] evaluate [4 5]
}

// Recycle gives a batch's memory back after the step, as popping an arena does. One piece of memory serves all batches.
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
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		memory[&batch.Data[0]] = true
		loader.Recycle(batch)
	}
	fmt.Println(loader.Len(), "batches in", len(memory), "place")
	// Output: 20 batches in 1 place
}

// OnError drops bad samples from their batches, here two at most. A third one fails its batch and ends the loop.
func ExampleOptions_onError() {
	data := Func(12, func(ctx context.Context, i int) (int, error) {
		if i%4 == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	budget := 2
	loader, err := New(data, List[int], Options{BatchSize: 4, Workers: 2, OnError: func(bad *SampleError) error {
		if budget--; budget < 0 {
			return bad
		}
		fmt.Println("dropped sample", bad.Index)
		return nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// dropped sample 3
	// [0 1 2]
	// dropped sample 7
	// [4 5 6]
	// dataloader: epoch 0, batch 2, sample 11: unexpected EOF
}

// Trace sees every batch: who loaded it, when, and how long the loop waited for it.
func ExampleTiming() {
	var waited time.Duration
	trace := func(t Timing) {
		fmt.Println("batch", t.Batch, "worker", t.Worker, "samples", t.Samples, "dropped", t.Dropped, "in time", !t.Done.Before(t.Start))
		waited += t.Wait
	}
	loader, err := New(Slice[int]{0, 1, 2, 3, 4}, List[int], Options{BatchSize: 2, Trace: trace})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	fmt.Println(waited > 0)
	// Output:
	// batch 0 worker -1 samples 2 dropped 0 in time true
	// [0 1]
	// batch 1 worker -1 samples 2 dropped 0 in time true
	// [2 3]
	// batch 2 worker -1 samples 1 dropped 0 in time true
	// [4]
	// true
}

// Stats says where the time goes. Loading takes five times as long as training here, so five workers would keep up.
func ExampleStats() {
	data := Func(100, func(ctx context.Context, i int) (int, error) {
		time.Sleep(500 * time.Microsecond) // load
		return i, nil
	})
	stats := new(Stats)
	loader, err := New(data, List[int], Options{BatchSize: 10, Workers: 1, Trace: stats.Observe})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		time.Sleep(time.Millisecond) // train
	}
	line := stats.String() // here "10 batches, 100 samples (1600/s), …: the loader is the bottleneck, workers needed: 5"
	fmt.Println(line[:strings.Index(line, " (")])
	// Output: 10 batches, 100 samples
}

// Progress(os.Stderr, …) shows a bar on a terminal. Anywhere else it writes a line every ten seconds, and a last line.
func ExampleProgress() {
	loader, err := New(Slice[int]{1, 2, 3, 4, 5}, List[int], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var shown strings.Builder
	for batch, err := range Progress(&shown, loader.Len(), loader.Epoch(context.Background(), 0)) {
		if err != nil {
			fmt.Println(err)
			return
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

// Streams: what has no indices, or needs stages of its own.

// FromSeq makes a stream of any sequence, here of lines. The lines are shuffled, filtered, mapped and read ahead, and a
// checkpoint in the middle of all that resumes.
func ExampleFromSeq() {
	lines := FromSeq(func(ctx context.Context, epoch int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { // open the file here, and close it when this returns
			for line := range strings.FieldsSeq("one two three four five six seven eight") {
				if !yield(line, nil) {
					return
				}
			}
		}
	})
	long := lines.Shuffle(4, 1).Filter(func(s string) bool { return len(s) > 3 })
	upper := Map(long, 2, func(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil }).Prefetch(3)

	var at Cursor
	for s, err := range upper.Run(context.Background(), &at) {
		if err != nil {
			fmt.Println(err)
			return
		}
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
	for s, err := range upper.Run(context.Background(), &resumed) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(s, " ")
	}
	fmt.Println("| then epoch", resumed.Epoch)
	// Output:
	// THREE FIVE FOUR | {"epoch":0,"pos":5,"state":{"by":"Shuffle(4, seed 1)","n":2,"m":1,"source":{"epoch":0,"pos":3,"state":{"by":"FromSeq"}},"again":4,"end":{"epoch":0,"pos":7,"state":{"by":"FromSeq"}}}}
	// SEVEN EIGHT | then epoch 1
}

// Map makes small stages: list files, load them in two workers, ahead of the next stage, and decode them.
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
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(number)
	}
	// Output:
	// 7
	// 8
	// 9
}

// Indices, Map and Batch make a loader's batches. The first comes sooner, because all workers fetch its samples.
func ExampleBatch() {
	data := Slice[string]{"a", "b", "c", "d", "e"}
	sampler := Random(data.Len(), 1)
	pipeline := Batch(Map(Indices(sampler), 8, data.Get), 2, List[string])
	loader, err := New(data, List[string], Options{Sampler: sampler, BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for both, err := range Zip(pipeline, loader.Stream()).Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(both.First, both.Second)
	}
	// Output:
	// [c b] [c b]
	// [a e] [a e]
	// [d] [d]
}

// Batch takes any Collate, here Pad. A slow collate function may be a Map over lists, here in two workers.
func ExampleBatch_collate() {
	words := Map(Indices(Sequential(3)), 0, func(_ context.Context, i int) ([]rune, error) {
		return []rune([]string{"pad", "to", "longest"}[i]), nil
	})
	for padded, err := range Batch(words, 2, Pad('.')).Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(padded.Shape, padded.Lengths, string(padded.Data))
	}
	lists := Batch(words, 2, List[[]rune])
	joined := Map(lists, 2, func(_ context.Context, list [][]rune) (string, error) {
		return string(slices.Concat(list...)), nil
	})
	for text, err := range joined.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(text)
	}
	// Output:
	// [2 3] [3 2] padto.
	// [1 7] [7] longest
	// padto
	// longest
}

// Unbatch lets batch sizes differ between stages: fetch in batches of 4, train in batches of 3.
func ExampleUnbatch() {
	fetched := Map(Batch(Indices(Sequential(10)), 4, List[int]), 2, func(_ context.Context, ids []int) ([]string, error) {
		rows := make([]string, len(ids)) // one query for all of them
		for j, id := range ids {
			rows[j] = fmt.Sprint("row ", id)
		}
		return rows, nil
	})
	for batch, err := range Batch(Unbatch(fetched), 3, List[string]).Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(batch)
	}
	// Output:
	// [row 0 row 1 row 2]
	// [row 3 row 4 row 5]
	// [row 6 row 7 row 8]
	// [row 9]
}

// Filter keeps the items for which its function is true. An item that failed stays, as an error in its place.
func ExampleStream_Filter() {
	parsed := Map(Indices(Sequential(4)), 2, func(_ context.Context, i int) (int, error) {
		return strconv.Atoi([]string{"7", "8", "nine", "10"}[i])
	})
	for n, err := range parsed.Filter(func(n int) bool { return n != 8 }).Epoch(context.Background(), 0) {
		var bad *SampleError
		if errors.As(err, &bad) {
			fmt.Println(err)
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(n)
	}
	// Output:
	// 7
	// dataloader: epoch 0, the item before pos 3: Map: strconv.Atoi: parsing "nine": invalid syntax
	// 10
}

// Shard deals a source out to ranks, and Prefetch reads it in its own goroutine. Only the loop opens the source.
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
	for i, err := range part.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(i)
	}
	// Output:
	// defined
	// opened
	// 0
	// 2
	// 4
}

// Mix takes items from three streams in turn. A stream is a definition, so all three may read the same source.
func ExampleMix() {
	numbers := Indices(Sequential(3))
	times := func(factor int) Stream[int] {
		return Map(numbers, 0, func(_ context.Context, i int) (int, error) { return i * factor, nil })
	}
	mix := Mix(MixOptions{Stop: StopAtLast}, numbers, times(100), times(111))
	for i, err := range mix.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(i, " ")
	}
	// Output: 0 0 0 1 100 111 2 200 222
}

// MixOptions mix data sets by weight. A mix ends by one of four rules.
func ExampleMixOptions() {
	letters := func(text string) Stream[string] {
		return Map(Indices(Sequential(len(text))), 0, func(_ context.Context, i int) (string, error) { return text[i : i+1], nil })
	}
	for _, stop := range []Stop{StopAtFirst, StopAtLast, CycleUntilLast, CycleForever} {
		mix := Mix(MixOptions{Weights: []float64{3, 1}, Seed: 4, Stop: stop}, letters("abcdef"), letters("XYZ")).Take(24)
		for letter, err := range mix.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
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

// Chain puts streams one after the other. Repeat, Take and Shard change one stream, and Zip joins two item by item.
func ExampleChain() {
	low := Indices(Sequential(3))
	high := Map(low, 0, func(_ context.Context, i int) (int, error) { return 10 + i, nil })
	for _, s := range []Stream[int]{
		Chain(low, high),
		low.Repeat(2),
		low.Repeat(0).Take(8), // endless without Take
		Chain(low, high).Shard(Shard{Index: 1, Count: 2}),
	} {
		var all []int
		for i, err := range s.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
			all = append(all, i)
		}
		fmt.Println(all)
	}
	for pair, err := range Zip(low, high).Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(pair, " ")
	}
	// Output:
	// [0 1 2 10 11 12]
	// [0 1 2 0 1 2]
	// [0 1 2 0 1 2 0 1]
	// [1 10 12]
	// {0 10} {1 11} {2 12}
}

// Stream makes a stream of a loader. Its items carry the cursor that follows them, failed items too.
func ExampleDataLoader_Stream() {
	data := Func(5, func(ctx context.Context, i int) (int, error) {
		if i == 3 {
			return 0, io.ErrUnexpectedEOF
		}
		return i, nil
	})
	loader, err := New(data, List[int], Options{BatchSize: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	var stream Stream[[]int] = loader.Stream()
	var last Item[[]int]
	for item, err := range stream(context.Background(), Cursor{Epoch: 7}) {
		if err != nil { // the stream cannot be continued
			fmt.Println(err)
			return
		}
		fmt.Println(item.Value, item.Err, "then epoch", item.Next.Epoch, "pos", item.Next.Pos)
		last = item
	}
	for item, err := range stream(context.Background(), last.Next) {
		fmt.Println("nothing follows the last item, but here is", item, err)
	}
	// Output:
	// [0 1] <nil> then epoch 7 pos 2
	// [] dataloader: epoch 7, batch 1, sample 3: unexpected EOF then epoch 7 pos 4
	// [4] <nil> then epoch 7 pos 5
}

// A stream of your own keeps what it needs in the cursor's State, and loads it from there.
func ExampleCursor_Load() {
	type state struct{ Line int64 }
	at := Cursor{Epoch: 2, Pos: 100, State: state{Line: 1 << 60}}
	saved, err := json.Marshal(at)
	if err != nil {
		fmt.Println(err)
		return
	}
	var back Cursor
	if err := json.Unmarshal(saved, &back); err != nil {
		fmt.Println(err)
		return
	}
	var s state
	if err := back.Load(&s); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Line == 1<<60)
	// Output: true
}

// tar.go: shards.

// packShard writes records to a tar shard in a temporary folder of its own.
func packShard(name string, records ...Record) (path string, err error) {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		return "", err
	}
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	for _, r := range records {
		err = errors.Join(err, w.Write(r))
	}
	path = filepath.Join(dir, name)
	return path, errors.Join(err, w.Close(), os.WriteFile(path, shard.Bytes(), 0o666))
}

// Tar reads the records of shards. A truncated shard yields its whole records and then one error, and the next shard
// follows.
func ExampleTar() {
	shard, err := packShard("train-0.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}, {"cls", []byte("0")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}, {"cls", []byte("1")}}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(filepath.Dir(shard))
	whole, err := os.ReadFile(shard)
	if err != nil {
		fmt.Println(err)
		return
	}
	truncated := filepath.Join(filepath.Dir(shard), "train-1.tar")
	if err := os.WriteFile(truncated, whole[:3000], 0o666); err != nil {
		fmt.Println(err)
		return
	}

	records, err := Tar([]string{truncated, shard}, TarOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		var bad *SampleError
		var damage *TarError
		if errors.As(err, &bad) && errors.As(err, &damage) {
			fmt.Println("skipped the rest of", filepath.Base(damage.Shard), "from", damage.Entry, "on")
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s %s\n", r.Key, r.Get("cls"), r.Get("txt"))
	}
	// Output:
	// cat: 0 meow
	// skipped the rest of train-1.tar from dog.cls on
	// cat: 0 meow
	// dog: 1 woof
}

// OpenTar reads the records of shards by index, so a loader can shuffle all of them. WriteIndex writes an index beside
// each shard, and the next OpenTar need not read the shard's headers.
func ExampleOpenTar() {
	shard, err := packShard("train.tar",
		Record{Key: "cat", Files: []File{{"txt", []byte("meow")}}},
		Record{Key: "cow", Files: []File{{"txt", []byte("moo")}}},
		Record{Key: "dog", Files: []File{{"txt", []byte("woof")}}},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(filepath.Dir(shard))

	var data *TarDataset
	data, err = OpenTar(shard)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()
	if err := data.WriteIndex(); err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(data, List[Record], Options{BatchSize: 2, Shuffle: true, Seed: 3, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
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

// A TarWriter writes records to a shard. It refuses a record that would be read back as another.
func ExampleTarWriter() {
	var shard bytes.Buffer
	var w *TarWriter = NewTarWriter(&shard)
	files := []File{{"txt", []byte("meow")}, {"cls", []byte("0")}}
	fmt.Println(w.Write(Record{Key: "pets/cat", Files: files}))
	fmt.Println(w.Write(Record{Key: "pets/cat.2", Files: files}))
	if err := w.Close(); err != nil {
		fmt.Println(err)
		return
	}
	for r := tar.NewReader(&shard); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(h.Name, h.Size)
	}
	// Output:
	// <nil>
	// dataloader: TarWriter: record "pets/cat.2": file "pets/cat.2.cls" would be read as field "2.cls" of record "pets/cat"
	// pets/cat.cls 1
	// pets/cat.txt 4
}

// An Opener reads shards from any other store, here a file system in memory. It may also add headers to requests.
func ExampleOpener() {
	var shard bytes.Buffer
	w := NewTarWriter(&shard)
	if err := errors.Join(w.Write(Record{Key: "cat", Files: []File{{"txt", []byte("meow")}}}), w.Close()); err != nil {
		fmt.Println(err)
		return
	}
	store := fstest.MapFS{"bucket/train.tar": {Data: shard.Bytes()}}
	var open Opener = func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		object, ok := strings.CutPrefix(name, "mem://")
		if !ok {
			return OpenShard(ctx, name, offset)
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
		fmt.Println(err)
		return
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
	}
	// Output: cat: meow
}

// Expand lists the names of shards.
func ExampleExpand() {
	shards, err := Expand("https://example.org/{train,valid}-{08..10}.tar")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range shards {
		fmt.Println(name)
	}
	// Output:
	// https://example.org/train-08.tar
	// https://example.org/train-09.tar
	// https://example.org/train-10.tar
	// https://example.org/valid-08.tar
	// https://example.org/valid-09.tar
	// https://example.org/valid-10.tar
}

// Recipes.

// Decode makes of each file what its extension says. The files come from a folder or from a tar shard.
func ExampleDecode() {
	decode := func(_ context.Context, f File) (any, error) { return Decode(f.Name, f.Data) }
	open := func(name string) (Stream[any], error) {
		if strings.HasSuffix(name, ".tar") {
			records, err := Tar([]string{name}, TarOptions{})
			if err != nil {
				return nil, err
			}
			files := Unbatch(Map(records, 0, func(_ context.Context, r Record) ([]File, error) { return r.Files, nil }))
			return Map(files, 2, decode), nil
		}
		files, err := Files(os.DirFS(name))
		if err != nil {
			return nil, err
		}
		return Map(Indices(Sequential(files.Len())), 2, Transform(files, decode).Get), nil
	}

	files := []File{{"cls", []byte("0")}, {"json", []byte(`{"legs": 4}`)}, {"txt", []byte("meow")}}
	shard, err := packShard("pets.tar", Record{Key: "cat", Files: files})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(filepath.Dir(shard))
	folder := filepath.Join(filepath.Dir(shard), "pets")
	if err := os.Mkdir(folder, 0o777); err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, "cat."+f.Name), f.Data, 0o666); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, name := range []string{shard, folder} {
		values, err := open(name)
		if err != nil {
			fmt.Println(err)
			return
		}
		for value, err := range values.Epoch(context.Background(), 0) {
			if err != nil {
				fmt.Println(err)
				return
			}
			fmt.Printf("%T %v\n", value, value)
		}
	}
	// Output:
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
}

// Images in a folder for each class become batches: Folder finds them, Transform decodes them, and Stack puts them into
// one tensor.
func Example_imageFolder() {
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer archive.Close()
	fsys, err := fs.Sub(archive, "train") // or os.DirFS("train")
	if err != nil {
		fmt.Println(err)
		return
	}
	files, classes, err := Folder(fsys)
	if err != nil {
		fmt.Println(err)
		return
	}
	type labelled = Pair[Tensor[float32], int]
	images := Transform(files, func(ctx context.Context, f Pair[File, int]) (labelled, error) {
		decoded, err := Decode(f.First.Name, f.First.Data)
		if err != nil {
			return labelled{}, err
		}
		img, ok := decoded.(image.Image)
		if !ok {
			return labelled{}, fmt.Errorf("%s is not an image", f.First.Name)
		}
		b := img.Bounds()
		gray := Tensor[float32]{Shape: []int{b.Dy(), b.Dx()}}
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				pixel := color.GrayModel.Convert(img.At(x, y)).(color.Gray)
				gray.Data = append(gray.Data, float32(pixel.Y)/255)
			}
		}
		return labelled{gray, f.Second}, nil
	})
	loader, err := New(images, CollatePair(Stack[float32], List[int]), Options{
		BatchSize: 64, Shuffle: true, Workers: runtime.NumCPU(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(classes, batch.First.Shape, len(batch.Second))
		break
	}
	// Output: [0 1 2 3 4 5 6 7 8 9] [64 16 16] 64
}

// Images are packed into tar shards once, and a model learns from their stream: records that are shuffled, decoded by
// several goroutines, and batched. Its cursor resumes in the middle of a shard, of the shuffle and of an epoch.
func Example_trainingFromTar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "digits")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	// pack deals the train digits out to shards, in random order, because a shard is read from front to back.
	pack := func(pattern string, shards int) error {
		archive, err := zip.OpenReader("testdata/digits.zip") // train/0/000.png to test/9/024.png
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
		order := Random(files.Len(), 7).Order(0)
		for s := range shards {
			out, err := os.Create(fmt.Sprintf(pattern, s))
			if err != nil {
				return err
			}
			defer out.Close()
			w := NewTarWriter(out)
			for pos := s; pos < files.Len(); pos += shards {
				file, err := files.Get(ctx, order(pos))
				if err != nil {
					return err
				}
				r := Record{Key: fmt.Sprintf("%04d", pos), Files: []File{
					{"cls", []byte(classes[file.Second])},
					{"png", file.First.Data},
				}}
				if err := w.Write(r); err != nil {
					return err
				}
			}
			if err := errors.Join(w.Close(), out.Close()); err != nil {
				return err
			}
		}
		return nil
	}
	if err := pack(filepath.Join(dir, "train-%02d.tar"), 6); err != nil {
		fmt.Println(err)
		return
	}
	shards, err := Expand(filepath.Join(dir, "train-{00..05}.tar"))
	if err != nil {
		fmt.Println(err)
		return
	}

	// A digit is an image of the shape [16 16], from 0 for paper to 1 for ink, and the digit that it shows.
	type digit = Pair[Tensor[float32], int]
	decode := func(_ context.Context, r Record) (digit, error) {
		label, err := strconv.Atoi(string(r.Get("cls")))
		if err != nil {
			return digit{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
		}
		img, err := png.Decode(bytes.NewReader(r.Get("png")))
		if err != nil {
			return digit{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
		}
		gray, ok := img.(*image.Gray)
		if !ok {
			return digit{}, fmt.Errorf("%s of %s: %T, want %T", r.Key, r.Shard, img, gray)
		}
		pixels := make([]float32, len(gray.Pix))
		for i, p := range gray.Pix {
			pixels[i] = float32(p) / 255
		}
		return digit{Tensor[float32]{Data: pixels, Shape: []int{gray.Rect.Dy(), gray.Rect.Dx()}}, label}, nil
	}

	// The model is a perceptron: a weight for each digit and pixel. The digit with the largest sum is its guess.
	type model [10][16 * 16]float64
	guess := func(m *model, pixels []float32) (best int) {
		top := math.Inf(-1)
		for d := range m {
			sum := 0.0
			for j, x := range pixels {
				sum += m[d][j] * float64(x)
			}
			if sum > top {
				best, top = d, sum
			}
		}
		return best
	}

	type checkpoint struct {
		Model model
		At    Cursor
	}
	// train resumes a checkpoint, runs until epoch 10 or until it is interrupted after a number of batches, and returns the
	// next checkpoint.
	train := func(saved []byte, workers, batches int) ([]byte, error) {
		var c checkpoint
		if err := json.Unmarshal(saved, &c); err != nil {
			return nil, err
		}
		records, err := Tar(shards, TarOptions{Shuffle: true, Seed: 1})
		if err != nil {
			return nil, err
		}
		digits := Map(records.Shuffle(200, 2), workers, decode)
		stream := Batch(digits, 32, CollatePair(Stack[float32], List[int])).Prefetch(2)
		for c.At.Epoch < 10 {
			for batch, err := range stream.Run(ctx, &c.At) {
				if err != nil {
					return nil, err
				}
				for i, label := range batch.Second {
					pixels := batch.First.Data[i*16*16 : (i+1)*16*16]
					wrong := guess(&c.Model, pixels)
					if wrong == label {
						continue
					}
					for j, x := range pixels {
						c.Model[label][j] += float64(x)
						c.Model[wrong][j] -= float64(x)
					}
				}
				if batches--; batches == 0 {
					return json.Marshal(c)
				}
			}
		}
		return json.Marshal(c)
	}
	whole, err := train([]byte("{}"), 2, -1) // never interrupted
	if err != nil {
		fmt.Println(err)
		return
	}
	half, err := train([]byte("{}"), 0, 80) // interrupted in epoch 4, after 8 of 18 batches
	if err != nil {
		fmt.Println(err)
		return
	}
	rest, err := train(half, 3, -1) // resumes there
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the same weights as without the interruption:", bytes.Equal(rest, whole))

	// The same shards are a data set too, whose records are read by index.
	data, err := OpenTar(shards...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer data.Close()
	var c checkpoint
	if err := json.Unmarshal(rest, &c); err != nil {
		fmt.Println(err)
		return
	}
	loader, err := New(Transform(data, decode), List[digit], Options{BatchSize: 32, Workers: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	recognized := 0
	for batch, err := range loader.Epoch(ctx, 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, d := range batch {
			if guess(&c.Model, d.First.Data) == d.Second {
				recognized++
			}
		}
	}
	fmt.Println("more than 9 of 10 training images recognized:", 10*recognized > 9*data.Len())
	// Output:
	// the same weights as without the interruption: true
	// more than 9 of 10 training images recognized: true
}

// The files that the Examples and the README need.

var update = flag.Bool("update", false, "rewrite the files in testdata")

// digitFonts has the ways to write each digit. A way is strokes, a stroke is points, and a point is its column, 0 to 7 from
// the left, and its row, 0 to 9 from the top. A stroke after "~" is a curve inside the corners of its points.
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

// drawDigit draws a digit as a hand does: off centre, leaning, turned, in any size, with any pen and ink, on paper with
// spots. Points are complex numbers, in pixels.
func drawDigit(strokes string, rng *rand.Rand) *image.Gray {
	between := func(low, high float64) float64 { return low + (high-low)*rng.Float64() }
	wide, high := between(0.95, 1.35), between(1, 1.35) // a column and a row
	lean, turn := between(-0.2, 0.3), cmplx.Rect(1, between(-0.1, 0.1))
	centre := complex(between(6.5, 8.5), between(6.5, 8.5))
	pen, ink := between(0.5, 1.1), between(150, 255) // pen is half the width of a stroke
	img := image.NewGray(image.Rect(0, 0, 16, 16))
	for stroke := range strings.SplitSeq(strokes, ", ") {
		points, curved := strings.CutPrefix(stroke, "~")
		var line []complex128
		for p := range strings.FieldsSeq(points) {
			x, y := wide*(float64(p[0]-'0')-3), high*(float64(p[1]-'0')-4.5)
			line = append(line, centre+turn*complex(x-lean*y, y))
		}
		for round := 0; curved && round < 3; round++ { // cut the corners, as Chaikin does; the ends stay
			cut := line[:1:1]
			for i, b := range line[1:] {
				cut = append(cut, 0.75*line[i]+0.25*b, 0.25*line[i]+0.75*b)
			}
			line = append(cut, line[len(line)-1])
		}
		for i, end := range line[1:] {
			for k := range img.Pix { // p is the pixel and b the end of the segment, both from its start
				p, b := complex(float64(k%16), float64(k/16))-line[i], end-line[i]
				along := (real(p)*real(b) + imag(p)*imag(b)) / (real(b)*real(b) + imag(b)*imag(b))
				distance := cmplx.Abs(p - complex(min(max(along, 0), 1), 0)*b)
				img.Pix[k] = max(img.Pix[k], uint8(math.Round(ink*min(max(pen-distance+0.5, 0), 1))))
			}
		}
	}
	for range rng.IntN(8) {
		img.Pix[rng.IntN(len(img.Pix))] = uint8(rng.IntN(256))
	}
	return img
}

// TestDigits draws digits.zip again and compares the pixels. The compressed bytes may differ between versions of Go.
func TestDigits(t *testing.T) {
	images := map[string]*image.Gray{}
	rng := rand.New(rand.NewPCG(1, 2))
	for digit, font := range digitFonts {
		for i := range 55 + 25 {
			name := fmt.Sprintf("train/%d/%03d.png", digit, i)
			if i >= 55 {
				name = fmt.Sprintf("test/%d/%03d.png", digit, i-55)
			}
			images[name] = drawDigit(font[rng.IntN(len(font))], rng)
		}
	}
	if *update {
		var packed bytes.Buffer
		w := zip.NewWriter(&packed)
		encoder := png.Encoder{CompressionLevel: png.BestCompression}
		for _, name := range slices.Sorted(maps.Keys(images)) {
			if err := encoder.Encode(must(w.Create(name)), images[name]); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), os.WriteFile("testdata/digits.zip", packed.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	archive, err := zip.OpenReader("testdata/digits.zip")
	if err != nil {
		t.Fatalf("copy the folder testdata too: %v", err)
	}
	defer archive.Close()
	if len(archive.File) != len(images) {
		t.Errorf("%d files, want %d", len(archive.File), len(images))
	}
	for name, want := range images {
		data, err := fs.ReadFile(archive, name)
		if err != nil {
			t.Error(err)
			continue
		}
		img, err := png.Decode(bytes.NewReader(data))
		got, ok := img.(*image.Gray)
		if err != nil || !ok || got.Rect != want.Rect {
			t.Errorf("%s: %T, %v, want %T of %v", name, img, err, want, want.Rect)
			continue
		}
		for i := range want.Pix {
			// Machines that fuse multiplication and addition round less often. That may be the difference between
			// 99.4999… and 99.5, hence one level, but never two.
			if d := int(got.Pix[i]) - int(want.Pix[i]); d < -1 || d > 1 {
				t.Errorf("%s: pixel %d is %d, want %d", name, i, got.Pix[i], want.Pix[i])
				break
			}
		}
	}
}

// TestReadme runs every program of README.md in a module with a copy of this package. The names in README.md and the
// index of the Examples must exist.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatalf("copy README.md and testdata too: %v", err)
	}
	module := fstest.MapFS{"go.mod": {Data: []byte("module example.org/trainer\n\ngo 1.25\n")}}
	var source []byte
	for _, name := range must(filepath.Glob("*.go")) {
		data := must(os.ReadFile(name))
		source = append(source, data...)
		module["dataloader/"+name] = &fstest.MapFile{Data: data}
	}
	programs := strings.Split(string(readme), "```go\n")[1:]
	for i, block := range programs {
		program, _, _ := strings.Cut(block, "```")
		module[fmt.Sprintf("program%d/main.go", i)] = &fstest.MapFile{Data: []byte(program)}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, module); err != nil {
		t.Fatal(err)
	}
	for i := range programs {
		cmd := exec.Command("go", "run", fmt.Sprintf("./program%d", i))
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("program %d: %v\n%s", i, err, out)
		}
	}
	if lines := bytes.Count(readme, []byte("\n")); len(programs) < 3 || lines > 280 {
		t.Errorf("%d programs in %d lines, want 3 or more in at most 280", len(programs), lines)
	}
	names := regexp.MustCompile("`(?:Example|Test|Fuzz|Benchmark)\\w+`").FindAll(readme, -1)
	names = append(names, regexp.MustCompile(`\bExample(_|[A-Z])\w*`).FindAll(source, -1)...)
	for _, name := range names {
		if name = bytes.Trim(name, "`"); !bytes.Contains(source, fmt.Appendf(nil, "func %s(", name)) {
			t.Errorf("there is no %s", name)
		}
	}
	for _, link := range regexp.MustCompile(`\]\(([\w/.]+)\)`).FindAllSubmatch(readme, -1) {
		if _, err := os.Stat(string(link[1])); err != nil {
			t.Error(err)
		}
	}
}
