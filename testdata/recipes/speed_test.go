package recipes

// Data that come faster.
//
//	Example_flatFile          records in one file, with offsets
//	Example_cacheOnDisk       decoded samples on disk
//	Example_cachedStream      a stream in memory
//	Example_decoderPerWorker  a decoder or a connection for each worker
//	Example_shortEpochs       no wait between short epochs
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"dataloader"
)

// mapped returns the content of a file. Here it is a copy. A program for Unix
// maps the file into memory instead. Then it may be larger than the memory, is
// read page by page as it is used, and processes share it:
//
//	file, err := os.Open(name)
//	info, err := file.Stat() // if its Size is 0, there is nothing to map
//	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()),
//		syscall.PROT_READ, syscall.MAP_SHARED)
//
// On Windows golang.org/x/sys/windows has CreateFileMapping and MapViewOfFile.
// Where a system maps no files, as wasip1, use ReadAt. Mapped memory must not
// be written to. If the file is truncated meanwhile, a signal ends the program,
// where ReadAt returns an error. So replace a file by os.Rename, and do not
// write into it.
func mapped(name string) ([]byte, error) { return os.ReadFile(name) }

// flatFile opens records of any length in one file, without headers, and the
// second file of the offsets at which they begin, as Arrow and FFCV store them.
// A record is a part of the file, so if the file is mapped, an epoch allocates
// and copies nothing. Nothing notices damage, except a length that does not
// fit.
func flatFile(name string) (dataloader.Dataset[[]byte], error) {
	data, err := mapped(name)
	if err != nil {
		return nil, err
	}
	index, err := os.ReadFile(name + ".offsets")
	if err != nil {
		return nil, err
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(index[8*i:]) }
	n := len(index)/8 - 1
	if n < 0 || at(0) != 0 || at(n) != uint64(len(data)) {
		return nil, fmt.Errorf("%s has %d bytes, which its offsets do not fit", name, len(data))
	}
	return dataloader.Func(n, func(_ context.Context, i int) ([]byte, error) {
		return data[at(i):at(i+1):at(i+1)], nil // no capacity: an append copies
	}), nil
}

// writeFlatFile removes old offsets first, and writes new ones last, so that an
// interrupted run leaves none. Files are renamed when they are whole, because
// processes may have mapped the old ones.
func writeFlatFile(name string, records []string) error {
	var content []byte
	offsets := []uint64{0}
	for _, r := range records {
		content = append(content, r...)
		offsets = append(offsets, uint64(len(content)))
	}
	index, err := binary.Append(nil, binary.LittleEndian, offsets)
	if err != nil {
		return err
	}
	err = os.Remove(name + ".offsets")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range []dataloader.File{{Name: name, Data: content},
		{Name: name + ".offsets", Data: index}} {
		if err := os.WriteFile(file.Name+".part", file.Data, 0o666); err != nil {
			return err
		}
		if err := os.Rename(file.Name+".part", file.Name); err != nil {
			return err
		}
	}
	return nil
}

// Records in one file with their offsets are the fastest to read by index.
// Nobody else can read such files, where a tar shard by OpenTar is one that
// many programs know.
func Example_flatFile() {
	dir, err := os.MkdirTemp("", "records")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train.bin")
	if err := writeFlatFile(name, []string{"a cat", "two dogs", "", "a goat"}); err != nil {
		log.Fatal(err)
	}
	records, err := flatFile(name)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := dataloader.New(records, dataloader.List[[]byte],
		dataloader.Options{BatchSize: 3, Shuffle: true})
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

// cacheOnDisk keeps the samples of slow in a folder: a file of encoding/gob
// with a checksum for each. A file is renamed when all of it is written, and
// all users may read it, so goroutines and processes may share the folder. A
// sample whose file is empty or damaged, as after a loss of power, is decoded
// and written again. If nothing can be written, as on a full disk, the log says
// so once, and samples are decoded each time. Processes that are killed leave
// files *.part. A change of the decoding or of the data needs a new folder. gob
// does not write unexported fields, and if T is an interface, gob.Register its
// types.
func cacheOnDisk[T any](dir string, slow dataloader.Dataset[T]) dataloader.Dataset[T] {
	var warning sync.Once
	return dataloader.Func(slow.Len(), func(ctx context.Context, i int) (x T, err error) {
		name := filepath.Join(dir, fmt.Sprintf("%08d.gob", i))
		kept, _ := os.ReadFile(name) // what cannot be read is decoded again
		if n := len(kept) - 4; n > 0 {
			sum := binary.LittleEndian.Uint32(kept[n:])
			var x T
			if crc32.ChecksumIEEE(kept[:n]) == sum &&
				gob.NewDecoder(bytes.NewReader(kept[:n])).Decode(&x) == nil {
				return x, nil
			}
		}
		if x, err = slow.Get(ctx, i); err == nil { // an error is not kept
			if err := keepOnDisk(name, x); err != nil {
				warning.Do(func() { log.Print("samples are not kept: ", err) })
			}
		}
		return x, err
	})
}

// keepOnDisk writes a sample with its checksum.
func keepOnDisk[T any](name string, x T) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(&x); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), "*.part")
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

// A cache of decoded samples on disk, for decoding that takes longer than
// reading its result. Random augmentation belongs in a Transform of the result;
// in the cache its first outcome would stay for ever. gob is slow for floats.
// Pixels that are kept as uint8, and made float32 in a Transform, take a third
// to a quarter of the time, and a sixth of the space.
func Example_cacheOnDisk() {
	type sample = dataloader.Tensor[float32]
	raw := dataloader.Slice[string]{"1.5 2", "3 4.5", "5 6"}
	var decoded atomic.Int64
	slow := dataloader.Transform(raw, func(_ context.Context, text string) (x sample, err error) {
		decoded.Add(1)
		x = sample{Data: make([]float32, 2), Shape: []int{2}}
		_, err = fmt.Sscan(text, &x.Data[0], &x.Data[1])
		return x, err
	})
	dir, err := os.MkdirTemp("", "decoded-v1")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cached := cacheOnDisk(dir, slow)
	augmented := dataloader.Transform(cached, func(ctx context.Context, x sample) (sample, error) {
		x.Data[0] += float32(dataloader.Rand(ctx).IntN(10)) // x is this call's own
		return x, nil
	})
	loader, err := dataloader.New(augmented, dataloader.Stack[float32],
		dataloader.Options{BatchSize: 3, Workers: 2})
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

// inMemory keeps a stream in memory when an epoch has been read to its end, and
// later epochs read nothing. An epoch that the loop leaves, or in which an item
// fails, is not kept, and the next loop reads the source again; OnError before
// the cache drops items that always fail. What is kept is whole after a resume,
// too: FromSeq calls its function from the start, and skips. Shuffle and
// augment after the cache, because all epochs are the source's epoch 0, and do
// not change items in place.
func inMemory[T any](source dataloader.Stream[T]) dataloader.Stream[T] {
	var memory atomic.Pointer[[]T] // nil until an epoch has been read to its end
	return dataloader.FromSeq(func(ctx context.Context, _ int) iter.Seq2[T, error] {
		return func(yield func(T, error) bool) {
			if kept := memory.Load(); kept != nil {
				for _, value := range *kept {
					if !yield(value, nil) {
						return
					}
				}
				return
			}
			items, complete := []T{}, true
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
}

// A stream that is read once, and then stays in memory.
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
	cached := inMemory(source)
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
	loader, err := dataloader.New(data, dataloader.List[string],
		dataloader.Options{BatchSize: 3, Workers: workers})
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
