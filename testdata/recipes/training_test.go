package recipes

// The loop: checkpoints, signals, gradients, schedules.
//
//	Example_checkpoint            a checkpoint in a file, and the resume
//	Example_refusedCursor         a cursor that does not fit
//	Example_resumeAtAStep         a resume from a step number only
//	Example_interrupted           SIGTERM and Ctrl-C
//	Example_signal                the same while a sample hangs
//	Example_gradientAccumulation  several batches a step
//	Example_evaluation            each sample once, on any number of ranks
//	Example_schedule              batch sizes and lengths that change
//	Example_whichSamples          which samples a step has
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"dataloader"
)

// A checkpoint is what the next training process must know: the model, here a
// sum, and the cursor. If your weights are written by encoding/gob, gob the
// cursor's JSON with them.
type checkpoint struct {
	Sum int
	At  dataloader.Cursor
}

// save writes a file of its own and renames it, so that the name always stands
// for a whole checkpoint: of two processes the last one wins, and a full disk
// or a loss of power leaves the checkpoint before. A killed process may leave a
// file *.new.
func (c checkpoint) save(name string) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	dir := filepath.Dir(name)
	file, err := os.CreateTemp(dir, filepath.Base(name)+".*.new")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // of no effect after Rename
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if folder, failed := os.Open(dir); failed == nil {
		folder.Sync() // so that a loss of power does not undo Rename, where the system can
		folder.Close()
	}
	return err
}

// loadCheckpoint returns the zero checkpoint if there is no file: the first
// process begins with it. A file without a cursor is refused: it is another
// program's, and the training would begin anew and overwrite it.
func loadCheckpoint(name string) (c checkpoint, err error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	c.At.Epoch = -1
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err == nil && c.At.Epoch < 0 {
		err = errors.New("it has no cursor")
	}
	if err != nil {
		err = fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return c, err
}

// A training is interrupted, and resumes from a checkpoint in a file. Among
// ranks only rank 0 saves it.
func Example_checkpoint() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.json")
	data := dataloader.Slice[int]{1, 2, 3, 4, 5}
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 2, Shuffle: true, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}

	// train is one process. It is interrupted after a number of steps.
	train := func(steps int) error {
		c, err := loadCheckpoint(name)
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
				if err := c.save(name); err != nil {
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
	if err := os.WriteFile(name, []byte(`{"loss":1}`), 0o666); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Unwrap(train(-1)))
	// Output:
	// interrupted
	// the sum of two epochs: 30
	// <nil>
	// it has no cursor
}

// An ordered is an order of data that have a name, which is part of its
// description. For a loader there is Options.DataVersion.
type ordered struct {
	dataloader.Sampler
	version string // of the data: a date, or a hash of the ids
}

func (o ordered) String() string { return fmt.Sprint(o.Sampler, " of ", o.version) }

// A cursor that was saved with other data or other options is refused, and so
// is a damaged one. Here a row was replaced since: without a name for the data
// the resume would repeat rows, and leave others out. This program tries the
// cursor again, because a refusal may be due to a source that fails for a
// moment. Then it begins the epoch again. A *SampleError is asked for first:
// its cause may be a cursor that a loop in Get has refused. A truncated file
// fails before, in json.Unmarshal, with an error that is no ErrCursor. Copy the
// type ordered, too.
func Example_refusedCursor() {
	state := json.RawMessage(`{"by": "Indices(Sequential(3) of ids v1)"}`)
	at := dataloader.Cursor{Epoch: 6, Pos: 2, State: state} // from a file
	rows := dataloader.Indices(ordered{dataloader.Sequential(3), "ids v2"})
	for refusals := 0; at.Epoch < 7; {
		for i, err := range rows.Run(context.Background(), &at) {
			var bad *dataloader.SampleError
			if errors.As(err, &bad) {
				fmt.Println("skipped:", bad)
				continue
			}
			if errors.Is(err, dataloader.ErrCursor) {
				fmt.Printf("%.81s…\n", err)
				if refusals++; refusals == 2 {
					at = dataloader.Cursor{Epoch: max(0, at.Epoch)}
				}
				break
			}
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(i)
		}
	}
	// Output:
	// dataloader: refused cursor {epoch 6, pos 2}: it was made by Indices(Sequential(3)…
	// dataloader: refused cursor {epoch 6, pos 2}: it was made by Indices(Sequential(3)…
	// 0
	// 1
	// 2
}

// SIGTERM and Ctrl-C, if each Get returns when its context ends: the loop ends
// with the context's cause, between two steps.
func Example_interrupted() {
	loader, err := dataloader.New(dataloader.Slice[int]{0, 1, 2, 3, 4, 5}, dataloader.List[int],
		dataloader.Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal kills
	var at dataloader.Cursor
	sum := 0
	for batch, err := range loader.Run(ctx, &at) {
		if err != nil {
			fmt.Println("saved:", sum, at, "because:", err)
			return
		}
		for _, x := range batch {
			sum += x
		}
		if at.Pos == 4 {
			stop() // stands for the signal
		}
	}
	// Output: saved: 6 {"epoch":0,"pos":4,"state":{"by":"Sequential(6)"}} because: context canceled
}

// SIGTERM, Ctrl-C, preemption: a checkpoint even if a Get hangs. The loop would
// hear of its context's end only when that Get has returned. So the loop has a
// context that does not end, and the function that saves ends the program. It
// waits for a step that has begun, and no other begins, because it keeps the
// mutex. Between two steps Run may have moved at already: c has a copy that
// fits the weights. Save under the same mutex elsewhere, too. A second signal
// kills at once. Do not defer stop: it ends ctx, so that a training that has
// come to its end would save and exit as well.
func Example_signal() {
	hanging := make(chan bool)
	data := dataloader.Func(6, func(ctx context.Context, i int) (int, error) {
		if i == 4 {
			<-hanging // a network file system
		}
		return i, nil
	})
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	exit := func(int) { close(hanging) } // in a program os.Exit

	var mu sync.Mutex // held while weights and cursor do not fit each other
	var c struct {
		Sum int // the weights
		At  dataloader.Cursor
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // the next signal kills
		mu.Lock()
		defer mu.Unlock() // not reached in a program
		saved, err := json.Marshal(c)
		fmt.Println(string(saved), err) // Example_checkpoint writes a file
		exit(1)
	})
	at := c.At
	for batch, err := range loader.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		mu.Lock()
		for _, x := range batch {
			c.Sum += x
		}
		if at.Pos == 4 {
			stop() // stands for the signal
		}
		c.At = at
		mu.Unlock()
	}
	// Output: {"Sum":6,"At":{"epoch":0,"pos":4,"state":{"by":"Sequential(6)"}}} <nil>
}

// Gradient accumulation: an optimizer step takes the gradients of several
// batches. The checkpoint changes after a whole step only, cursor and weights
// together, so a run that is interrupted within a step loads its batches again.
// Batches that are left at the end of an epoch make a smaller step: no step
// spans two epochs. The gradient is divided by the number of samples, not of
// batches, because the last batch may be smaller. If the loss has a term for
// each token, divide by the number of tokens that have one, because texts
// differ in length. On several ranks, sum gradients and numbers over the ranks
// first, and if the framework takes the mean over ranks, multiply by their
// number.
func Example_gradientAccumulation() {
	const accumulate = 2 // batches in a step
	data := dataloader.Slice[float64]{1, 2, 3, 4, 5, 6, 7, 8, 9}
	loader, err := dataloader.New(data, dataloader.List[float64],
		dataloader.Options{BatchSize: 2, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	var c struct { // the checkpoint, as in Example_checkpoint
		Weight float64
		At     dataloader.Cursor
	}
	train := func(batches int) { // one process, which is interrupted after a number of batches
		at := c.At
		gradient, samples, k := 0.0, 0, 0 // of the k batches since the last step
		step := func() {
			if k > 0 {
				c.Weight -= gradient / float64(samples)
				fmt.Println("a step of", samples, "samples makes the weight", c.Weight)
			}
			c.At = at // save c here
			gradient, samples, k = 0, 0, 0
		}
		for at.Epoch < 1 {
			for batch, err := range loader.Run(context.Background(), &at) {
				if err != nil {
					log.Fatal(err)
				}
				for _, x := range batch {
					gradient += x // stands for the backward pass
				}
				samples += len(batch)
				if k++; k == accumulate {
					step()
				}
				if batches--; batches == 0 {
					return
				}
			}
			step() // the rest of the epoch
		}
	}
	train(3)
	fmt.Println("interrupted after 3 batches; the checkpoint is at", c.At.Pos)
	train(-1)
	// Output:
	// a step of 4 samples makes the weight -2.5
	// interrupted after 3 batches; the checkpoint is at 4
	// a step of 4 samples makes the weight -9
	// a step of 1 samples makes the weight -18
}

// An evaluation counts each sample once, on any number of ranks: UnevenTail
// neither repeats nor leaves out samples. Sums and numbers are added up over
// batches and ranks, and divided at the end: a mean of the batches' means gives
// samples of small batches more weight. A rank may have fewer batches than
// others, or none, so ranks must not exchange anything within the loop. Divide
// a loss of tokens by the number of tokens.
func Example_evaluation() {
	losses := dataloader.Slice[float64]{1, 1, 1, 1, 1, 1, 1, 1, 8} // stands for samples and a model
	const ranks = 2
	// evaluate is what a rank does. means is what not to do.
	evaluate := func(rank int, tail dataloader.Tail) (sum float64, count int, means []float64) {
		loader, err := dataloader.New(losses, dataloader.List[float64], dataloader.Options{
			BatchSize: 4, Rank: dataloader.Rank{Index: rank, Count: ranks}, Tail: tail,
		})
		if err != nil {
			log.Fatal(err)
		}
		for batch, err := range loader.Epoch(context.Background(), 0) {
			if err != nil {
				log.Fatal(err) // otherwise the mean is of fewer samples
			}
			before := sum
			for _, loss := range batch {
				sum += loss
			}
			count += len(batch)
			means = append(means, (sum-before)/float64(len(batch)))
		}
		return sum, count, means
	}
	for _, tail := range []dataloader.Tail{dataloader.UnevenTail, dataloader.PadTail} {
		sum, count := 0.0, 0
		var means []float64
		for rank := range ranks { // for which an all-reduce stands in a training
			s, n, m := evaluate(rank, tail)
			sum += s
			count += n
			means = append(means, m...)
		}
		mean := sum / float64(count)
		fmt.Printf("the mean of %d samples: %.2f; of the batches: %.2f\n", count, mean, means)
	}
	// Output:
	// the mean of 9 samples: 1.78; of the batches: [1.00 8.00 1.00]
	// the mean of 10 samples: 1.70; of the batches: [1.00 8.00 1.00 1.00]
}

// The batch size and the length of the sequences change at given places of the
// training: another loader goes on with the same cursor, at any step, because
// the order is one of samples. A sample is a window of the longest sequence,
// which load divides into rows, so the order does not depend on the length. The
// stage follows from the cursor, so a resume needs nothing else; here each step
// is a process of its own. A place counts the samples of all ranks.
func Example_schedule() {
	const text = "abcdefghijklmnopqrstuvwxyz012345"
	const longest = 8
	const n = len(text) / longest // windows
	stages := []struct{ from, batchSize, length int }{{0, 1, 2}, {2, 2, 4}, {6, 2, 8}}
	stageOf := func(at dataloader.Cursor) (k int) {
		for k+1 < len(stages) && at.Epoch*n+at.Pos >= stages[k+1].from {
			k++
		}
		return k
	}
	train := func(at *dataloader.Cursor, steps int) {
		for at.Epoch < 3 {
			k := stageOf(*at)
			load := func(_ context.Context, rows []string, indices []int) ([]string, error) {
				rows = rows[:0]
				for _, i := range indices {
					window := text[i*longest : (i+1)*longest]
					for j := 0; j < longest; j += stages[k].length {
						rows = append(rows, window[j:j+stages[k].length])
					}
				}
				return rows, nil
			}
			loader, err := dataloader.NewBatchFunc(n, load, dataloader.Options{
				BatchSize: stages[k].batchSize, Shuffle: true, Seed: 1, Workers: 2,
			})
			if err != nil {
				log.Fatal(err)
			}
			for rows, err := range loader.Run(context.Background(), at) {
				if err != nil {
					log.Fatal(err)
				}
				fmt.Println("epoch", at.Epoch, rows)
				if steps--; steps == 0 {
					return
				}
				if stageOf(*at) != k {
					break
				}
			}
		}
	}
	var at dataloader.Cursor
	for at.Epoch < 3 {
		train(&at, 1)
		saved, err1 := json.Marshal(at)
		at = dataloader.Cursor{}
		err2 := json.Unmarshal(saved, &at)
		if err := errors.Join(err1, err2); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// epoch 0 [yz 01 23 45]
	// epoch 0 [qr st uv wx]
	// epoch 0 [ijkl mnop abcd efgh]
	// epoch 1 [abcd efgh ijkl mnop]
	// epoch 1 [qrstuvwx yz012345]
	// epoch 2 [ijklmnop qrstuvwx]
	// epoch 2 [yz012345 abcdefgh]
}

// Which samples has step k? A loader of the numbers 0 … n-1 with the Options of
// the training, Rank and Tail included, says it and loads nothing. Its cursors
// are those of the training, so At lets the training skip steps.
func Example_whichSamples() {
	opts := dataloader.Options{BatchSize: 3, Shuffle: true, Seed: 1,
		Rank: dataloader.Rank{Index: 1, Count: 2}}
	const n = 20 // the data set's Len
	numbers := dataloader.Func(n, func(_ context.Context, i int) (int, error) { return i, nil })
	which, err := dataloader.New(numbers, dataloader.List[int], opts)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	step := 5 // its loss was no number
	indices, err := which.Batch(ctx, step/which.Len(), step%which.Len())
	fmt.Println("step", step, "of rank", opts.Rank.Index, "has", indices, err)
	at := which.At(0, step+1) // skips it
	for indices, err := range which.Run(ctx, &at) {
		fmt.Println("then", indices, err)
	}
	// Output:
	// step 5 of rank 1 has [19 12 0] <nil>
	// then [16 17 6] <nil>
	// then [4] <nil>
}

// At makes a cursor of a step number, for a run that saved nothing else, and
// Batch loads one batch again, such as one whose loss was not a number. Use the
// options of that run: with another batch size or another number of ranks the
// step is another place, and with another seed it has other samples. A saved
// cursor would refuse another seed.
func Example_resumeAtAStep() {
	data := dataloader.Func(10, func(ctx context.Context, i int) (int, error) { return i, nil })
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 4, Shuffle: true, Seed: 1, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	step := 4 // four steps have been taken; an epoch has three
	at := loader.At(0, step)
	fmt.Println("epoch", at.Epoch, "pos", at.Pos)
	for batch, err := range loader.Run(ctx, &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("step", step, batch)
		step++
	}
	step = 4 // look at its batch again
	again, err := loader.Batch(ctx, step/loader.Len(), step%loader.Len())
	fmt.Println("step", step, again, err)
	// Output:
	// epoch 1 pos 4
	// step 4 [9 2 8 0]
	// step 5 [4 3]
	// step 4 [9 2 8 0] <nil>
}
