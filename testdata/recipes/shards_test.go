package recipes

// Shards: tar files of records, read from front to back.
//
//	Example_tarPipeline      shuffled, decoded by several goroutines, in batches
//	Example_damagedShards    a truncated shard: what is left of it, and one error
//	Example_trainingFromTar  a training, with a resume
//	Example_decodedBatches   the fastest: whole batches are decoded into memory that is used again
//	Example_rollingShards    writing shards of limited size
//	Example_elasticShards    a number of ranks that changes
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line and the path of digits.zip, too.

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"iter"
	"log"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"dataloader"
)

// Tar shards through a pipeline: they come in another order each epoch, their
// records are shuffled, decoded by eight goroutines, and made into batches
// ahead of the loop. What cannot be loaded is dropped behind Shuffle, which
// counts items at a resume. A failed item is a record, or the rest of a shard,
// whose connection may have broken: TarError.Rest tells them apart, and each
// has a budget of its own. For many shards Expand lists the names, which may be
// addresses.
func Example_tarPipeline() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train-000.tar")
	var files []string // with their content
	for i := range 100 {
		files = append(files, fmt.Sprintf("%03d.cls=%d", i, i%10))
	}
	if err := writeShard(name, append(files, "100.cls=seven")...); err != nil {
		log.Fatal(err)
	}

	items, shards := 0, 0 // that were dropped
	skip := func(bad *dataloader.SampleError) error {
		var broken *dataloader.TarError
		if errors.As(bad, &broken) && broken.Rest {
			shards++
		} else {
			items++
		}
		if items > 10 || shards > 1 {
			return bad
		}
		return nil
	}
	records, err := dataloader.Tar([]string{name}, dataloader.TarOptions{Shuffle: true, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	labels := dataloader.Map(records.Shuffle(1000, 2), 8,
		func(ctx context.Context, r dataloader.Record) (int, error) {
			label, err := strconv.Atoi(string(r.Get("cls")))
			if err != nil {
				return 0, fmt.Errorf("record %s of %s: %w", r.Key, r.Shard, err)
			}
			return label, nil
		}).OnError(skip)
	batches := dataloader.Batch(labels, 32, dataloader.List[int]).Prefetch(2)

	var at dataloader.Cursor // resumes after any batch
	for batch, err := range batches.Run(context.Background(), &at) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(at.Pos, len(batch), batch[:4])
	}
	fmt.Println("dropped:", items, "items, and the rest of", shards, "shards")
	// Output:
	// 33 32 [2 4 8 5]
	// 65 32 [9 2 3 6]
	// 97 32 [7 7 0 7]
	// 101 4 [8 3 2 5]
	// dropped: 1 items, and the rest of 0 shards
}

// Damaged shards: a truncated shard yields its whole records and then one
// error, and the next shard follows. Rest says that this error stands for more
// than one record: whoever counts errors may want to stop there.
func Example_damagedShards() {
	var shard bytes.Buffer
	w := dataloader.NewTarWriter(&shard)
	for label, name := range []string{"cat", "dog"} {
		files := []dataloader.File{
			{Name: "txt", Data: []byte("I am a " + name)},
			{Name: "cls", Data: []byte(strconv.Itoa(label))},
		}
		if err := w.Write(dataloader.Record{Key: name, Files: files}); err != nil {
			log.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	truncated, whole := filepath.Join(dir, "train-0.tar"), filepath.Join(dir, "train-1.tar")
	if err := os.WriteFile(truncated, shard.Bytes()[:3000], 0o666); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(whole, shard.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}

	shards := []string{truncated, whole} // Expand("train-{0..1}.tar") lists many
	records, err := dataloader.Tar(shards, dataloader.TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		var bad *dataloader.SampleError
		var damage *dataloader.TarError
		if errors.As(err, &bad) && errors.As(err, &damage) {
			fmt.Printf("skipped a record of %s at %s; the rest too: %t\n",
				filepath.Base(damage.Shard), damage.Entry, damage.Rest)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s %s\n", r.Key, r.Get("cls"), r.Get("txt"))
	}
	// Output:
	// cat: 0 I am a cat
	// skipped a record of train-0.tar at dog.cls; the rest too: true
	// cat: 0 I am a cat
	// dog: 1 I am a dog
}

// A digit is an image of the shape [3 16 16], and the number that it shows.
type digit = dataloader.Pair[dataloader.Tensor[float32], int]

// decodeDigit makes a digit of a record with the fields png and cls.
func decodeDigit(_ context.Context, r dataloader.Record) (digit, error) {
	img, err1 := dataloader.Decode("png", r.Get("png"))
	label, err2 := dataloader.Decode("cls", r.Get("cls"))
	if err := errors.Join(err1, err2); err != nil {
		return digit{}, fmt.Errorf("%s of %s: %w", r.Key, r.Shard, err)
	}
	pixels := dataloader.ImageTensor(dataloader.Tensor[float32]{}, img.(image.Image))
	return digit{First: pixels, Second: label.(int)}, nil
}

// digitBatches is the stream of a training: the records of the shards are
// shuffled, decoded by several goroutines, and batched ahead of the loop.
func digitBatches(shards []string, workers int) (
	batches dataloader.Stream[dataloader.Pair[dataloader.Tensor[float32], []int]], err error,
) {
	records, err := dataloader.Tar(shards, dataloader.TarOptions{Shuffle: true, Seed: 1})
	if err != nil {
		return batches, err
	}
	digits := dataloader.Map(records.Shuffle(200, 2), workers, decodeDigit)
	collate := dataloader.CollatePair(dataloader.Stack[float32], dataloader.List[int])
	return dataloader.Batch(digits, 32, collate).Prefetch(2), nil
}

// A model learns from tar shards. The stream's cursor resumes in the middle of
// a shard, of the shuffle and of an epoch. Then the same shards are a data set,
// which tests what was learned.
func Example_trainingFromTar() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shards, err := digitShards(filepath.Join(dir, "train-{00..05}.tar"))
	if err != nil {
		log.Fatal(err)
	}

	type checkpoint struct {
		Model perceptron
		At    dataloader.Cursor
	}
	// train resumes a checkpoint, runs until epoch 10 or until it is
	// interrupted after a number of batches, and returns the next checkpoint.
	train := func(c checkpoint, workers, batches int) checkpoint {
		stream, err := digitBatches(shards, workers)
		if err != nil {
			log.Fatal(err)
		}
		for c.At.Epoch < 10 {
			for batch, err := range stream.Run(ctx, &c.At) {
				if err != nil {
					log.Fatal(err)
				}
				for i, label := range batch.Second {
					c.Model.learn(batch.First.Data[i*pixels:(i+1)*pixels], label)
				}
				if batches--; batches == 0 {
					return c
				}
			}
		}
		return c
	}
	whole := train(checkpoint{}, 2, -1) // never interrupted
	half := train(checkpoint{}, 0, 80)  // interrupted in epoch 4, after 8 of 18 batches
	rest := train(half, 3, -1)          // resumes there
	fmt.Println("the same weights as without the interruption:", rest.Model == whole.Model)

	data, err := dataloader.OpenTar(shards...)
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	images, recognized := dataloader.Transform(data, decodeDigit), 0
	for i := range images.Len() {
		d, err := images.Get(ctx, i)
		if err != nil {
			log.Fatal(err)
		}
		if rest.Model.guess(d.First.Data) == d.Second {
			recognized++
		}
	}
	fmt.Println("more than 9 of 10 training images recognized:", 10*recognized > 9*images.Len())
	// Output:
	// the same weights as without the interruption: true
	// more than 9 of 10 training images recognized: true
}

// A shard ends with the record that reaches one of its limits. Often they are
// 10,000 records and 1 << 30 bytes.
type limits struct{ records, bytes int }

// writeShards writes a data set as shards: when one is full, the next begins.
// The folder is renamed when all of them are written, so nobody trains on a
// part of the data. The errors of every close count: a full disk may show only
// there. After any error, also of a record that Write refuses, and after a
// kill, the folder dir.part is left, into which no other process writes: delete
// it, and begin again.
func writeShards(dir string, full limits, records iter.Seq2[dataloader.Record, error]) error {
	if err := os.Mkdir(dir+".part", 0o777); err != nil { // an error if there is one
		return err
	}
	next, stop := iter.Pull2(records)
	defer stop()
	r, err, more := next()
	for k := 0; more; k++ {
		file, failed := os.Create(filepath.Join(dir+".part", fmt.Sprintf("train-%06d.tar", k)))
		if failed != nil {
			return failed
		}
		buffer := bufio.NewWriterSize(file, 1<<20)
		w := dataloader.NewTarWriter(buffer)
		for n, size := 0, 0; more && failed == nil && n < full.records && size < full.bytes; n++ {
			failed = err
			if failed == nil {
				failed = w.Write(r)
			}
			for _, f := range r.Files {
				size += len(f.Data)
			}
			r, err, more = next()
		}
		failed = errors.Join(failed, w.Close(), buffer.Flush(), file.Sync(), file.Close())
		if failed != nil {
			return failed
		}
	}
	return os.Rename(dir+".part", dir) // an error if there are files in dir
}

// Shards of limited size are written from a stream: by two workers, and in
// random order, since a shard is read from front to back. Write at least as
// many shards as there will be ranks.
func Example_rollingShards() {
	parent, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(parent)

	texts := dataloader.Slice[string]{"cat", "a text that is long", "cow", "dog", "goat", "pig",
		"rat"}
	record := func(_ context.Context, i int) (dataloader.Record, error) {
		files := []dataloader.File{{Name: "txt", Data: []byte(texts[i])}}
		return dataloader.Record{Key: fmt.Sprintf("%08d", i), Files: files}, nil
	}
	records := dataloader.Map(dataloader.Indices(dataloader.Random(texts.Len(), 1)), 2, record)
	dir := filepath.Join(parent, "train")
	err = writeShards(dir, limits{records: 3, bytes: 20}, records.Epoch(context.Background(), 0))
	if err != nil {
		log.Fatal(err)
	}

	names, err := filepath.Glob(filepath.Join(dir, "*.tar")) // Expand lists those of a server
	if err != nil {
		log.Fatal(err)
	}
	stream, err := dataloader.Tar(names, dataloader.TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range stream.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s %s\n", filepath.Base(r.Shard), r.Key, r.Get("txt"))
	}
	// Output:
	// train-000000.tar 00000000 cat
	// train-000000.tar 00000005 pig
	// train-000000.tar 00000003 dog
	// train-000001.tar 00000001 a text that is long
	// train-000001.tar 00000006 rat
	// train-000002.tar 00000004 goat
	// train-000002.tar 00000002 cow
}

// A readers is a fixed number of virtual readers of shards, which are dealt to
// the ranks in blocks. A step takes perReader records of each reader, so the
// steps stay the same on any number of ranks.
type readers struct {
	shards           []string
	count, perReader int
}

// rank trains for some steps, as a rank of so many. It begins at the cursors of
// all readers, updates those of its own block, and returns the keys of each
// step. A rank with many readers has as many shards open, and a rank without
// one is an error.
func (r readers) rank(index, ranks, steps int, at []dataloader.Cursor) (keys []string, err error) {
	if ranks > r.count {
		return nil, fmt.Errorf("%d ranks are more than %d readers", ranks, r.count)
	}
	var next []func() (dataloader.Record, error, bool)
	for i := index * r.count / ranks; i < (index+1)*r.count/ranks; i++ {
		records, err := dataloader.Tar(r.shards, dataloader.TarOptions{
			Rank: dataloader.Rank{Index: i, Count: r.count}, Shuffle: true, Seed: 1,
		})
		if err != nil {
			return nil, err
		}
		endless := records.Cycle().Prefetch(r.perReader)
		pull, stop := iter.Pull2(endless.Run(context.Background(), &at[i]))
		defer stop()
		next = append(next, pull)
	}
	for range steps {
		var batch []string
		for _, next := range next {
			for range r.perReader {
				record, err, _ := next()
				if err != nil {
					return nil, err
				}
				batch = append(batch, record.Key)
			}
		}
		keys = append(keys, strings.Join(batch, " "))
	}
	return keys, nil
}

// Elastic training from shards: the number of ranks may change at any
// checkpoint, and the steps stay the same. Only a rank knows where its readers
// stand, so each rank saves the cursors of its block, and a resume reads the
// files of all ranks.
func Example_elasticShards() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	r := readers{count: 4, perReader: 2}
	for i := range r.count { // as many shards as readers, or more
		var records []string
		for k := range 4 + i { // the first shard has the records a0 to a3
			records = append(records, fmt.Sprintf("%c%d.txt=", 'a'+i, k))
		}
		r.shards = append(r.shards, filepath.Join(dir, fmt.Sprint(i, ".tar")))
		if err := writeShard(r.shards[i], records...); err != nil {
			log.Fatal(err)
		}
	}

	// train runs all ranks, which in truth are processes, from one checkpoint
	// to the next, and returns their steps.
	train := func(ranks, steps int, at []dataloader.Cursor) (together []string) {
		together = make([]string, steps)
		for index := range ranks {
			keys, err := r.rank(index, ranks, steps, at)
			if err != nil {
				return []string{err.Error()}
			}
			for k := range together {
				together[k] = strings.TrimPrefix(together[k]+" "+keys[k], " ")
			}
		}
		return together
	}
	// What all ranks' files have, as JSON.
	at, other := make([]dataloader.Cursor, r.count), make([]dataloader.Cursor, r.count)
	fmt.Println(strings.Join(train(4, 4, at), "\n"))
	changing := slices.Concat(train(4, 1, other), train(1, 2, other), train(2, 1, other))
	fmt.Println("4 ranks, then 1, then 2:", changing[3])
	fmt.Println("same place:", fmt.Sprint(at) == fmt.Sprint(other))
	fmt.Println(train(5, 1, at))
	// Output:
	// d0 d1 c0 c1 b0 b1 a0 a1
	// d2 d3 c2 c3 b2 b3 a2 a3
	// d4 d5 c4 c5 b4 c0 d0 d1
	// d6 a0 b0 b1 c1 c2 d2 d3
	// 4 ranks, then 1, then 2: d6 a0 b0 b1 c1 c2 d2 d3
	// same place: true
	// [5 ranks are more than 4 readers]
}

// The fastest way from a shard to batches of images. Records are shuffled and
// batched as they are stored. A Map decodes whole batches, each image straight
// into its place, in memory that the loop gives back. With Batch(images, size,
// Stack) each image would have memory of its own, and so would each batch.
//
// Map has up to 8 × workers batches in flight, which is much for large ones; a
// loader with OpenTar and NewBatchFunc has Workers × Prefetch. A record that
// fails fails its batch, unless decode leaves it out. Rand in decode is the
// batch's.
func Example_decodedBatches() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "train-000.tar")
	var files []string // with their content
	for i := range 5 {
		img, file := image.NewGray(image.Rect(0, 0, 4, 2)), new(bytes.Buffer)
		img.Pix[0] = uint8(51 * i)
		if err := png.Encode(file, img); err != nil {
			log.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%d.png=%s", i, file))
	}
	if err := writeShard(name, files...); err != nil {
		log.Fatal(err)
	}
	records, err := dataloader.Tar([]string{name}, dataloader.TarOptions{Shuffle: true})
	if err != nil {
		log.Fatal(err)
	}

	const workers, pixels = 2, 3 * 2 * 4
	free := make(chan dataloader.Tensor[float32], 8*workers+1) // batches that were given back
	decode := func(_ context.Context,
		records []dataloader.Record) (batch dataloader.Tensor[float32], err error) {
		select {
		case batch = <-free:
		default: // more batches are in flight than ever before
		}
		size := len(records) * pixels
		batch.Data = slices.Grow(batch.Data[:0], size)[:size]
		batch.Shape = append(batch.Shape[:0], len(records), 3, 2, 4)
		for k, r := range records {
			img, err := png.Decode(bytes.NewReader(r.Get("png")))
			if err == nil && img.Bounds().Size() != image.Pt(4, 2) {
				err = fmt.Errorf("its size is %v", img.Bounds().Size())
			}
			if err != nil {
				return batch, fmt.Errorf("record %s of %s: %w", r.Key, r.Shard, err)
			}
			place := batch.Data[k*pixels:][:pixels]
			dataloader.ImageTensor(dataloader.Tensor[float32]{Data: place}, img) // or augment
		}
		return batch, nil
	}
	encoded := dataloader.Batch(records.Shuffle(1000, 1), 2, dataloader.List[dataloader.Record])
	for batch, err := range dataloader.Map(encoded, workers, decode).Epoch(context.Background(),
		0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Shape, batch.Data[0]) // train
		select {
		case free <- batch:
		default:
		}
	}
	// Output:
	// [2 3 2 4] 0.8
	// [2 3 2 4] 0.4
	// [1 3 2 4] 0
}

// # Fixtures, which the Examples need, and a program does not

// writeShard writes a tar file of files, which are written "name=content".
func writeShard(name string, files ...string) error {
	var shard bytes.Buffer
	w := tar.NewWriter(&shard)
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), os.WriteFile(name, shard.Bytes(), 0o666))
}

// digitShards writes the digits for training, which stand in digits.zip, to
// shards, in random order, since a shard is read from front to back. A record
// has the fields png and cls.
func digitShards(pattern string) ([]string, error) {
	shards, err := dataloader.Expand(pattern)
	if err != nil {
		return nil, err
	}
	archive, err := zip.OpenReader("../digits.zip")
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	files, err := dataloader.Files(archive, "train/**/*.png")
	if err != nil {
		return nil, err
	}
	records := make([][]string, len(shards))
	order := dataloader.Random(files.Len(), 7).Order(0)
	for pos := range files.Len() {
		file, err := files.Get(context.Background(), order(pos))
		if err != nil {
			return nil, err
		}
		s := pos % len(shards)
		records[s] = append(records[s], fmt.Sprint(pos, ".cls=", path.Base(path.Dir(file.Name))),
			fmt.Sprint(pos, ".png=", string(file.Data)))
	}
	for s, name := range shards {
		if err := writeShard(name, records[s]...); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// A perceptron has a weight for each digit and pixel. The digit with the
// largest sum is its guess.
type perceptron [10][pixels]float64

const pixels = 3 * 16 * 16

func (m *perceptron) guess(image []float32) int {
	var sums [10]float64
	for d := range m {
		for j, x := range image {
			sums[d] += m[d][j] * float64(x)
		}
	}
	return slices.Index(sums[:], slices.Max(sums[:]))
}

// learn changes nothing if the guess is right.
func (m *perceptron) learn(image []float32, label int) {
	wrong := m.guess(image)
	for j, x := range image {
		m[label][j] += float64(x)
		m[wrong][j] -= float64(x)
	}
}
