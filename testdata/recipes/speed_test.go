package recipes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dataloader"
)

// mapped returns the content of a file. Here it is a copy. A program for Unix
// maps the file into memory instead. Then it may be larger than the memory, is
// read page by page as it is used, and processes share it:
//
//	file, err := os.Open(name)
//	info, err := file.Stat()
//	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()),
//		syscall.PROT_READ, syscall.MAP_SHARED)
//
// On Windows golang.org/x/sys/windows has CreateFileMapping and MapViewOfFile.
// Where a system maps no files, as wasip1, use ReadAt. Mapped memory must not
// be written to. If the file is truncated meanwhile, a signal ends the program,
// where ReadAt returns an error. So replace a file by os.Rename, and do not
// write into it.
func mapped(name string) ([]byte, error) { return os.ReadFile(name) }

// Records of any length in one file, without headers, and in a second file the
// offsets at which they begin, as Arrow and FFCV store them. If the file is
// mapped, a record is a part of it, and an epoch allocates and copies nothing.
// Compared with a tar shard by OpenTar, nobody else can read such files, and
// nothing notices damage. The file of offsets is written last and renamed, so
// that an interrupted run leaves none.
func Example_flatFile() {
	dir, err := os.MkdirTemp("", "records")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.bin")
	var content []byte
	offsets := []uint64{0}
	for _, text := range []string{"a cat", "two dogs", "", "a goat"} {
		content = append(content, text...)
		offsets = append(offsets, uint64(len(content)))
	}
	index, err := binary.Append(nil, binary.LittleEndian, offsets)
	err = cmp.Or(err,
		os.WriteFile(name, content, 0o666),
		os.WriteFile(name+".part", index, 0o666),
		os.Rename(name+".part", name+".offsets"))
	if err != nil {
		log.Fatal(err)
	}

	data, err := mapped(name)
	if err != nil {
		log.Fatal(err)
	}
	index, err = os.ReadFile(name + ".offsets")
	if err != nil {
		log.Fatal(err)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(index[8*i:]) }
	n := len(index)/8 - 1
	if n < 0 || at(0) != 0 || at(n) != uint64(len(data)) {
		log.Fatalf("%s has %d bytes, which its offsets do not fit", name, len(data))
	}
	records := dataloader.Func(n, func(_ context.Context, i int) ([]byte, error) {
		return data[at(i):at(i+1):at(i+1)], nil // no capacity: an append copies
	})
	loader, err := dataloader.New(records, dataloader.List[[]byte], dataloader.Options{BatchSize: 3, Shuffle: true})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", batch)
		loader.Recycle(batch)
	}
	// Output:
	// ["" "two dogs" "a goat"]
	// ["a cat"]
}

// A cache of decoded samples on disk, for decoding that takes longer than
// reading its result: a file of encoding/gob with a checksum for each sample. A
// file is renamed when all of it is written, and all users may read it, so
// goroutines and processes may share the folder. A sample whose file is empty
// or damaged, as after a loss of power, is decoded and written again. If
// nothing can be written, as on a full disk, the log says so once, and samples
// are decoded each time. Processes that are killed leave files *.part. Random
// augmentation belongs in a Transform of the result; in the cache its first
// outcome would stay for ever. A change of the decoding or of the data needs a
// new folder, and gob does not write unexported fields. gob is slow for floats.
// Pixels that are kept as uint8, and made float32 in a Transform, take a third
// to a quarter of the time, and a sixth of the space.
func Example_cacheOnDisk() {
	type sample = dataloader.Tensor[float32]
	raw := dataloader.Slice[string]{"1.5 2", "3 4.5", "5 6"}
	var decoded atomic.Int64
	decode := func(_ context.Context, text string) (x sample, err error) {
		decoded.Add(1)
		x = sample{Data: make([]float32, 2), Shape: []int{2}}
		_, err = fmt.Sscan(text, &x.Data[0], &x.Data[1])
		return x, err
	}

	dir, err := os.MkdirTemp("", "decoded-v1")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	slow := dataloader.Transform(raw, decode)
	keep := func(name string, x sample) error {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(x); err != nil {
			return err
		}
		file, err := os.CreateTemp(dir, "*.part")
		if err != nil {
			return err
		}
		defer os.Remove(file.Name()) // of no effect after Rename
		sum := crc32.ChecksumIEEE(b.Bytes())
		_, err = file.Write(binary.LittleEndian.AppendUint32(b.Bytes(), sum))
		if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
			return err
		}
		return os.Rename(file.Name(), name)
	}
	var warning sync.Once
	cached := dataloader.Func(raw.Len(), func(ctx context.Context, i int) (x sample, err error) {
		name := filepath.Join(dir, fmt.Sprintf("%08d.gob", i))
		kept, _ := os.ReadFile(name) // what cannot be read is decoded again
		if n := len(kept) - 4; n > 0 {
			sum := binary.LittleEndian.Uint32(kept[n:])
			if crc32.ChecksumIEEE(kept[:n]) == sum {
				err = gob.NewDecoder(bytes.NewReader(kept[:n])).Decode(&x)
				return x, err
			}
		}
		if x, err = slow.Get(ctx, i); err == nil { // an error is not kept
			if err := keep(name, x); err != nil {
				warning.Do(func() { log.Print("samples are not kept: ", err) })
			}
		}
		return x, err
	})
	augmented := dataloader.Transform(cached, func(ctx context.Context, x sample) (sample, error) {
		x.Data[0] += float32(dataloader.Rand(ctx).IntN(10)) // x is this call's own
		return x, nil
	})
	loader, err := dataloader.New(augmented, dataloader.Stack[float32], dataloader.Options{BatchSize: 3, Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	for epoch := range 3 {
		for batch, err := range loader.Epoch(context.Background(), epoch) {
			fmt.Println(batch.Data, err, "decoded so far:", decoded.Load())
		}
		err := os.Truncate(filepath.Join(dir, "00000002.gob"), 20) // a loss of power
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// [4.5 2 7 4.5 8 6] <nil> decoded so far: 3
	// [10.5 2 4 4.5 5 6] <nil> decoded so far: 4
	// [3.5 2 8 4.5 6 6] <nil> decoded so far: 5
}

// A stream is kept in memory when an epoch has been read to its end, and later
// epochs read nothing. An epoch that the loop leaves, or in which an item
// fails, is not kept, and the next loop reads the source again; OnError before
// the cache drops items that always fail. What is kept is whole after a resume,
// too: FromSeq calls its function from the start, and skips. Put in your own
// source and type of items. Shuffle and augment after the cache, because all
// epochs are the source's epoch 0, and do not change items in place.
func Example_cachedStream() {
	var read atomic.Int64
	source := dataloader.FromSeq(func(context.Context, int) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { // open, read, decode
			for line := range strings.FieldsSeq("a b c d e") {
				var err error
				if read.Add(1) == 6 {
					err = io.ErrUnexpectedEOF // the connection broke
				}
				if !yield(line, err) {
					return
				}
			}
		}
	})

	type item = string
	var memory atomic.Pointer[[]item] // nil until an epoch has been read to its end
	cached := dataloader.FromSeq(func(ctx context.Context, _ int) iter.Seq2[item, error] {
		return func(yield func(item, error) bool) {
			if kept := memory.Load(); kept != nil {
				for _, value := range *kept {
					if !yield(value, nil) {
						return
					}
				}
				return
			}
			items, complete := []item{}, true
			for next, err := range source.Items(ctx, dataloader.Cursor{}) {
				if err != nil && ctx.Err() == nil {
					// The source has broken. FromSeq would take an error for
					// that of an item.
					panic(err)
				}
				if err == nil {
					err = next.Err
				}
				if err != nil {
					complete = false
				}
				items = append(items, next.Value)
				if !yield(next.Value, err) {
					return
				}
			}
			if complete {
				memory.Store(&items)
			}
		}
	})

	var at dataloader.Cursor
	for _, steps := range []int{2, -1, -1, -1} {
		fmt.Print("epoch ", at.Epoch, " from pos ", at.Pos, ":")
		for value, err := range cached.Run(context.Background(), &at) {
			var bad *dataloader.SampleError
			if errors.As(err, &bad) {
				value = "failed"
			} else if err != nil {
				log.Fatal(err)
			}
			fmt.Print(" ", value)
			if steps--; steps == 0 {
				break
			}
		}
		fmt.Println("; lines read so far:", read.Load())
	}
	// Output:
	// epoch 0 from pos 0: a b; lines read so far: 2
	// epoch 0 from pos 2: c failed e; lines read so far: 7
	// epoch 1 from pos 0: a b c d e; lines read so far: 12
	// epoch 2 from pos 0: a b c d e; lines read so far: 12
}

// A decoder or a connection that goroutines must not share is opened once for
// each worker. Worker is -1 in the caller's goroutine, so there is one handle
// more than workers; no lock is needed. Two loops at the same time have workers
// with the same numbers, and so have two Maps: give each its own handles, or
// use a sync.Pool.
func Example_decoderPerWorker() {
	type handle struct{ buffer bytes.Buffer } // open file, decoder, connection
	const workers = 3
	handles := make([]*handle, workers+1)
	var opened atomic.Int64
	data := dataloader.Func(9, func(ctx context.Context, i int) (string, error) {
		h := handles[dataloader.Worker(ctx)+1]
		if h == nil {
			h = new(handle) // open
			handles[dataloader.Worker(ctx)+1] = h
			opened.Add(1)
		}
		h.buffer.Reset() // two goroutines with one handle would overwrite each other's text
		for range i + 1 {
			fmt.Fprint(&h.buffer, i)
		}
		return h.buffer.String(), nil
	})
	loader, err := dataloader.New(data, dataloader.List[string], dataloader.Options{BatchSize: 3, Workers: workers})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch)
	}
	fmt.Println("opened at most", workers, "handles:", opened.Load() <= workers,
		"and by the caller:", handles[0] != nil)
	clear(handles) // close: no worker runs after the loop
	// Output:
	// [0 11 222]
	// [3333 44444 555555]
	// [6666666 77777777 888888888]
	// opened at most 3 handles: true and by the caller: false
}

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
	loader, err := dataloader.New(data, dataloader.List[int], dataloader.Options{BatchSize: 2, Workers: 1, Trace: trace})
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
// Copy stopwatch and timed, too, which stand before this Example.
func Example_slowStage() {
	var watches [3]stopwatch
	names := timed(dataloader.Map(dataloader.Indices(dataloader.Sequential(200)), 0, func(_ context.Context, i int) (string, error) {
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

// A progress bar with the loss in it, which is right after a resume, where
// Progress would count from 0 again. The cursor says how many steps have been
// taken: each moves Pos by BatchSize × ranks or, with a BatchSampler, by the
// number of ranks. The time left follows from the steps since the resume. Call
// bar in the loop body, with whatever else you want to see. PyTorch: tqdm with
// initial and set_postfix.
func Example_progressBar() {
	const perStep = 2 // BatchSize × ranks
	data := dataloader.Slice[float64]{5, 9, 6, 8, 7, 7, 8, 6, 9}
	loader, err := dataloader.New(data, dataloader.List[float64], dataloader.Options{BatchSize: perStep})
	if err != nil {
		log.Fatal(err)
	}
	var clock time.Time
	now := func() time.Time { return clock } // in a program: now := time.Now

	// newBar begins a bar on a terminal, when some of all steps have been
	// taken. It is drawn at most ten times a second.
	newBar := func(w io.Writer, taken, all int) func(step int, loss float64) {
		begin, drawn := now(), time.Time{}
		return func(step int, loss float64) {
			if step < all && now().Sub(drawn) < time.Second/10 {
				return
			}
			drawn = now()
			left := drawn.Sub(begin) / time.Duration(max(1, step-taken)) * time.Duration(all-step)
			bar := strings.Repeat("#", 20*step/all) + strings.Repeat(".", 20-20*step/all)
			fmt.Fprintf(w, "\r%3d%% [%s] %d/%d, %v left, loss %-12.4g",
				100*step/all, bar, step, all, left.Round(time.Second), loss)
		}
	}

	var terminal strings.Builder // in a program os.Stderr
	var at dataloader.Cursor     // the checkpoint: the cursor and
	mean := 0.0                  // the model
	train := func(steps int) {
		step := func() int { return (at.Pos + perStep - 1) / perStep }
		bar := newBar(&terminal, step(), loader.Len())
		for batch, err := range loader.Run(context.Background(), &at) {
			if err != nil {
				log.Fatal(err)
			}
			loss := 0.0
			for _, x := range batch {
				loss += (x - mean) * (x - mean) / float64(len(batch))
				mean += (x - mean) / 2
			}
			clock = clock.Add(3 * time.Second)
			bar(step(), loss)
			if steps--; steps == 0 {
				break
			}
		}
		fmt.Fprintln(&terminal)
	}
	train(2) // interrupted
	train(-1)
	shown := strings.ReplaceAll(terminal.String(), "\n", "")
	for line := range strings.SplitSeq(shown[1:], "\r") {
		fmt.Println(strings.TrimSpace(line))
	}
	// Output:
	// 20% [####................] 1/5, 12s left, loss 33.62
	// 40% [########............] 2/5, 9s left, loss 2.289
	// 60% [############........] 3/5, 6s left, loss 0.002441
	// 80% [################....] 4/5, 3s left, loss 1.629
	// 100% [####################] 5/5, 0s left, loss 5.08
}

// Cycle does in a pipeline what Resize does for a loader: its epoch never ends,
// so the workers of Map do not stop between two passes. Put Cycle before the
// stages with workers; after them it would stop them at the end of each pass.
// The loop ends after a number of steps. The cursor's Epoch stays 0, and its
// State holds the pass and the place in the pass.
func Example_shortEpochs() {
	data := dataloader.Slice[string]{"a", "b", "c", "d"}
	forever := dataloader.Indices(dataloader.Random(data.Len(), 1)).Cycle()
	batches := dataloader.Batch(dataloader.Map(forever, 2, data.Get), 2, dataloader.List[string])

	var at dataloader.Cursor
	steps := 5
	for batch, err := range batches.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("pass", (at.Pos-1)/data.Len(), batch)
		if steps--; steps == 0 {
			break
		}
	}
	saved, err := json.Marshal(at)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(saved))
	// Output:
	// pass 0 [d c]
	// pass 0 [b a]
	// pass 1 [a b]
	// pass 1 [c d]
	// pass 2 [b c]
	// {"epoch":0,"pos":10,"state":{"by":"Repeat(0)","n":2,"source":{"epoch":2,"pos":2,"state":{"by":"Indices(Random(4, seed 1))"}},"past":"4fb681edf500b54f"}}
}
