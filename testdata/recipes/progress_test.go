package recipes

// Where the time of a training goes, and how far it is.
//
//	Example_perfectLoader   what a faster loader would gain
//	Example_slowStage       which stage of a pipeline is slow
//	Example_pictureOfTimes  a picture of a run
//	Example_progressBar     a bar with the loss
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"context"
	"fmt"
	"iter"
	"log"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"dataloader"
)

// What would a perfect loader gain? The same training with a handful of batches
// that stay in memory says it. They must not be recycled.
func Example_perfectLoader() {
	var clock time.Duration
	data := dataloader.Func(100, func(ctx context.Context, i int) (int, error) {
		clock += 3 * time.Millisecond // load
		return i, nil
	})
	loader, err := dataloader.New(data, dataloader.List[int], dataloader.Options{BatchSize: 5})
	if err != nil {
		log.Fatal(err)
	}
	train := func(batches iter.Seq2[[]int, error]) time.Duration {
		begin := clock // in a program time.Now()
		for _, err := range batches {
			if err != nil {
				log.Fatal(err)
			}
			clock += 10 * time.Millisecond // train
		}
		return clock - begin // in a program time.Since(begin)
	}
	var kept [4][]int
	for k := range kept {
		if kept[k], err = loader.Batch(context.Background(), 0, k); err != nil {
			log.Fatal(err)
		}
	}
	perfect := func(yield func([]int, error) bool) {
		for k := range loader.Len() {
			if !yield(kept[k%len(kept)], nil) {
				return
			}
		}
	}
	fmt.Println("now", train(loader.Epoch(context.Background(), 0)), "at best", train(perfect))
	// Output: now 500ms at best 200ms
}

// A stopwatch says how long the stage after it has waited for the stages before
// it.
type stopwatch struct{ items, waited atomic.Int64 }

// timed is a stage that passes its items on.
func timed[T any](source dataloader.Stream[T], watch *stopwatch) dataloader.Stream[T] {
	return dataloader.NewStage(source, true, func(
		ctx context.Context, source dataloader.Stream[T], from dataloader.Cursor,
	) iter.Seq2[dataloader.Item[T], error] {
		return func(yield func(dataloader.Item[T], error) bool) {
			begin := time.Now()
			for item, err := range source.Items(ctx, from) {
				watch.items.Add(1)
				watch.waited.Add(int64(time.Since(begin)))
				if !yield(item, err) {
					return
				}
				begin = time.Now()
			}
		}
	})
}

// Which stage of a pipeline is slow, while it trains? Put timed in at two or
// three places, and print a line for each. The first stage from the source that
// is waited for nearly all the time is the slow one; if none is, the training
// is. Here, on some machine, the lines are
//
//	names: 200 items, waited 0 %
//	decode: 200 items, waited 99 %
//	batches: 25 items, waited 88 %
//
// so decode needs workers. The pipeline must end with a Prefetch: without it
// loading and training take turns. Stages in one goroutine add up their times.
// Copy stopwatch and timed, too.
func Example_slowStage() {
	var watches [3]stopwatch
	names := timed(dataloader.Map(dataloader.Indices(dataloader.Sequential(200)), 0,
		func(_ context.Context, i int) (string, error) {
			return fmt.Sprintf("%d.png", i), nil
		}), &watches[0])
	decoded := timed(dataloader.Map(names, 0, func(_ context.Context, name string) (string, error) {
		time.Sleep(100 * time.Microsecond)
		return "pixels of " + name, nil
	}), &watches[1])
	batches := timed(dataloader.Batch(decoded, 8, dataloader.List[string]).Prefetch(2), &watches[2])
	begin := time.Now()
	for _, err := range batches.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		time.Sleep(20 * time.Microsecond) // train
	}
	for i, name := range []string{"names", "decode", "batches"} {
		waited := float64(watches[i].waited.Load()) / float64(time.Since(begin))
		items := watches[i].items.Load()
		line := fmt.Sprintf("%s: %d items, waited %.0f %%", name, items, 100*waited)
		fmt.Println(line[:strings.Index(line, ",")])
	}
	// Output:
	// names: 200 items
	// decode: 200 items
	// batches: 25 items
}

// A picture of your own run: Trace writes events for ui.perfetto.dev or
// chrome://tracing, which show what each worker loads when, and when the loop
// waits and trains. An event of phase X has a begin and a duration, in
// microseconds. Each tid has a row: 1 is the loop, 2 worker 0, and so on. A
// viewer does without the bracket at the end, so the file of a killed run is
// good, too.
func Example_pictureOfTimes() {
	file := new(strings.Builder) // in a program os.Create("run.json")
	fmt.Fprintln(file, "[")
	begin := time.Now()
	const event = `{"name": "%s %d", "ph": "X", "pid": 1, "tid": %d, "ts": %.3f, "dur": %.3f},`
	add := func(tid int, name string, batch int, from time.Time, d time.Duration) {
		ts, dur := float64(from.Sub(begin))/1000, float64(d)/1000
		fmt.Fprintf(file, event+"\n", name, batch, tid, ts, dur)
	}
	trace := func(t dataloader.Timing) {
		wait := t.Received.Add(-t.Wait)
		if !t.First {
			add(1, "train before", t.Batch, wait.Add(-t.Body), t.Body)
		}
		add(1, "wait for", t.Batch, wait, t.Wait)
		add(t.Worker+2, "load", t.Batch, t.Start, t.Done.Sub(t.Start))
	}
	data := dataloader.Slice[int]{0, 1, 2}
	loader, err := dataloader.New(data, dataloader.List[int],
		dataloader.Options{BatchSize: 2, Workers: 1, Trace: trace})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Print(regexp.MustCompile(`\d+\.\d+`).ReplaceAllString(file.String(), "…"))
	// Output:
	// [
	// {"name": "wait for 0", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "load 0", "ph": "X", "pid": 1, "tid": 2, "ts": …, "dur": …},
	// {"name": "train before 1", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "wait for 1", "ph": "X", "pid": 1, "tid": 1, "ts": …, "dur": …},
	// {"name": "load 1", "ph": "X", "pid": 1, "tid": 2, "ts": …, "dur": …},
}

// A progress bar with the loss in it, and with the step of the epoch, since
// Progress counts from 0 again after a resume. The cursor says how many steps
// have been taken: each moves Pos by BatchSize × ranks or, with a BatchSampler,
// by the number of ranks. PyTorch: tqdm with initial and set_postfix.
func Example_progressBar() {
	const perStep = 2 // BatchSize × ranks
	data := dataloader.Slice[float64]{5, 9, 6, 8, 7, 7, 8, 6, 9}
	loader, err := dataloader.New(data, dataloader.List[float64],
		dataloader.Options{BatchSize: perStep})
	if err != nil {
		log.Fatal(err)
	}
	var terminal strings.Builder // in a program os.Stderr
	var at dataloader.Cursor     // the checkpoint: the cursor and
	mean, loss := 0.0, 0.0       // the model
	train := func(steps int) {
		taken := (at.Pos + perStep - 1) / perStep
		show := func() string {
			return fmt.Sprintf("step %d of %d, loss %.3g", taken, loader.Len(), loss)
		}
		batches := loader.Run(context.Background(), &at)
		left := loader.Len() - taken
		for batch, err := range dataloader.Progress(&terminal, left, batches, show) {
			if err != nil {
				log.Fatal(err)
			}
			loss = 0
			for _, x := range batch {
				loss += (x - mean) * (x - mean) / float64(len(batch))
				mean += (x - mean) / 2
			}
			taken++
			if steps--; steps == 0 {
				break
			}
		}
	}
	train(2) // interrupted
	train(-1)
	// A line begins with what Progress measures: 2/5 40% 120/s, 0s, 0s left,
	// waited 12%.
	fmt.Print(regexp.MustCompile(`(?m)^.*waited.*?, `).ReplaceAllString(terminal.String(), ""))
	// Output:
	// step 2 of 5, loss 2.29
	// step 5 of 5, loss 5.08
}
