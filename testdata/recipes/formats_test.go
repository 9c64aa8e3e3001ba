package recipes

// Files in the formats of other programs.
//
//	Example_filesOrShards  files of many kinds, in a folder or in shards
//	Example_mnist          MNIST's files, gzipped, as they are published
//	Example_npz            NumPy's .npz archives
//	Example_tfrecord       TFRecord files, with their checksums
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader".

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"log"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"

	"dataloader"
)

// Files of many kinds, in a folder or in a tar shard: Decode makes of each what
// its extension says.
func Example_filesOrShards() {
	decode := func(_ context.Context, f dataloader.File) (any, error) {
		return dataloader.Decode(f.Name, f.Data)
	}
	open := func(name string) (none dataloader.Stream[any], err error) {
		if strings.HasSuffix(name, ".tar") {
			records, err := dataloader.Tar([]string{name}, dataloader.TarOptions{})
			if err != nil {
				return none, err
			}
			lists := dataloader.Map(records, 0,
				func(_ context.Context, r dataloader.Record) ([]dataloader.File, error) {
					return r.Files, nil
				})
			return dataloader.Map(dataloader.Unbatch(lists), 2, decode), nil
		}
		files, err := dataloader.Files(os.DirFS(name))
		if err != nil {
			return none, err
		}
		return dataloader.Map(dataloader.Indices(dataloader.Sequential(files.Len())), 2,
			dataloader.Transform(files, decode).Get), nil
	}

	files := []dataloader.File{
		{Name: "cls", Data: []byte("0")},
		{Name: "json", Data: []byte(`{"legs": 4}`)},
		{Name: "txt", Data: []byte("meow")},
	}
	dir, err := os.MkdirTemp("", "pets")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shard, folder := filepath.Join(dir, "pets.tar"), filepath.Join(dir, "pets")
	var packed bytes.Buffer
	w := dataloader.NewTarWriter(&packed)
	if err := w.Write(dataloader.Record{Key: "cat", Files: files}); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(shard, packed.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o777); err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, "cat."+f.Name), f.Data, 0o666); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{shard, folder} {
		values, err := open(name)
		if err != nil {
			log.Fatal(err)
		}
		for value, err := range values.Epoch(context.Background(), 0) {
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
	// int 0
	// map[string]interface {} map[legs:4]
	// string meow
}

// MNIST's files, as they are published: gzipped arrays of bytes behind a
// header, the IDX format. Rows makes a data set of an array, Pairs joins the
// images and their labels, and an image becomes float32 as it is fetched, so
// the whole set stays in a quarter of the memory. For the real files let mnist
// be os.DirFS of their folder. Fashion-MNIST, KMNIST and EMNIST have the same
// format.
func Example_mnist() {
	mnist := fstest.MapFS{}
	for name, data := range map[string][]byte{ // three images of 2 by 2 pixels
		"train-images-idx3-ubyte.gz": {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2,
			0, 51, 0, 51, 102, 0, 102, 0, 255, 255, 255, 255},
		"train-labels-idx1-ubyte.gz": {0, 0, 8, 1, 0, 0, 0, 3, 7, 4, 9},
	} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(data)
		if err := errors.Join(err, w.Close()); err != nil {
			log.Fatal(err)
		}
		mnist[name] = &fstest.MapFile{Data: b.Bytes()}
	}

	// read reads an array with so many dimensions: the bytes 0, 0, 8 for uint8
	// and dims, the lengths, and the data.
	read := func(name string, dims int) (t dataloader.Tensor[uint8], err error) {
		file, err := mnist.Open(name)
		if err != nil {
			return t, err
		}
		defer file.Close()
		unzipped, err := gzip.NewReader(file)
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		data, err := io.ReadAll(unzipped) // to the end, where the checksum is
		if err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		head := []byte{0, 0, 8, byte(dims)}
		if !bytes.HasPrefix(data, head) || len(data) < 4+4*dims {
			begins := data[:min(4, len(data))]
			return t, fmt.Errorf("%s: it begins with % x, want % x", name, begins, head)
		}
		for d := range dims {
			t.Shape = append(t.Shape, int(binary.BigEndian.Uint32(data[4+4*d:])))
		}
		t.Data = data[4+4*dims:] // Rows compares its length with the shape
		return t, nil
	}
	pixels, err := read("train-images-idx3-ubyte.gz", 3)
	if err != nil {
		log.Fatal(err)
	}
	digits, err := read("train-labels-idx1-ubyte.gz", 1)
	if err != nil {
		log.Fatal(err)
	}
	rows, err := dataloader.Rows(pixels)
	if err != nil {
		log.Fatal(err)
	}
	labels, err := dataloader.Rows(digits)
	if err != nil {
		log.Fatal(err)
	}
	type sample = dataloader.Tensor[float32]
	images := dataloader.Transform(rows, func(_ context.Context,
		image dataloader.Tensor[uint8]) (sample, error) {
		x := sample{Data: make([]float32, len(image.Data)), Shape: image.Shape}
		for j, p := range image.Data {
			x.Data[j] = float32(p) / 255
		}
		return x, nil
	})
	data, err := dataloader.Pairs(images, labels)
	if err != nil {
		log.Fatal(err)
	}
	loader, err := dataloader.New(data, dataloader.CollatePair(dataloader.Stack[float32],
		dataloader.Stack[uint8]), dataloader.Options{
		BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.First.Shape, batch.First.Data, batch.Second.Data)
	}
	// Output:
	// [2 2 2] [0.4 0 0.4 0 0 0.2 0 0.2] [4 7]
	// [1 2 2] [1 1 1 1] [9]
}

// A .npz file of NumPy is a zip archive with an .npy file for each array, and
// zip.OpenReader's result is an fs.FS. All of it is read into memory, and zip
// checks its sums, so a damaged file is an error before the training. float16
// becomes float32. The elements' type is that of the Tensor. (npy is only for
// the file here.)
func Example_npz() {
	var file bytes.Buffer // as np.savez("train.npz", x=x, y=y) writes it
	w := zip.NewWriter(&file)
	for name, array := range map[string]string{
		"x.npy": npy(1, "'<f2'", "False", "(3, 2)", "\x00\x00\x008\x00<\x00>\x00@\x00\xc0"),
		"y.npy": npy(1, "'<i8'", "False", "(3,)", "\x07"+strings.Repeat("\x00", 23)),
	} {
		entry, err := w.Create(name)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.WriteString(entry, array); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	archive, err := zip.NewReader(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		log.Fatal(err)
	}

	arrays := map[string]any{}
	for _, name := range []string{"x.npy", "y.npy"} {
		data, err := fs.ReadFile(archive, name)
		if err != nil {
			log.Fatal(err)
		}
		if arrays[name], err = dataloader.Decode(name, data); err != nil {
			log.Fatal(err)
		}
	}
	x, isFloat := arrays["x.npy"].(dataloader.Tensor[float32])
	y, isInt := arrays["y.npy"].(dataloader.Tensor[int64])
	if !isFloat || !isInt {
		log.Fatalf("a %T and a %T", arrays["x.npy"], arrays["y.npy"])
	}
	features, err1 := dataloader.Rows(x)
	labels, err2 := dataloader.Rows(y)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	data, err := dataloader.Pairs(features, labels)
	if err != nil {
		log.Fatal(err)
	}
	for i := range data.Len() {
		fmt.Println(data.Get(context.Background(), i))
	}
	// Output:
	// {{[0 0.5] [2]} {[7] []}} <nil>
	// {{[1 1.5] [2]} {[0] []}} <nil>
	// {{[2 -2] [2]} {[0] []}} <nil>
}

// TFRecord files, as TensorFlow writes them. A record is its length in 8 bytes,
// a sum of these, the data, and a sum of them: a CRC-32C that is rotated, plus
// a constant. A record with a wrong sum is a failed item. A length with a wrong
// sum, or a truncated file, costs the rest of the file, also as one item, since
// nobody knows where the next record begins. A resume reads the file again, up
// to its place. Most records are messages tf.Example: decode them with a
// package for protocol buffers in a Map. Several files are mixed as in
// Example_jsonLinesGzip.
func Example_tfrecord() {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	masked := func(data []byte) uint32 {
		return bits.RotateLeft32(crc32.Checksum(data, castagnoli), 17) + 0xa282ead8
	}
	read := func(file *bufio.Reader) (data []byte, sound bool, err error) {
		var head [12]byte
		if _, err := io.ReadFull(file, head[:]); err != nil {
			return nil, false, err // io.EOF at the end
		}
		length := binary.LittleEndian.Uint64(head[:])
		if binary.LittleEndian.Uint32(head[8:]) != masked(head[:8]) || length > 1<<30 {
			return nil, false, fmt.Errorf("no TFRecord, or damaged: % x", head)
		}
		data = make([]byte, length+4)
		if _, err := io.ReadFull(file, data); err != nil {
			return nil, false, io.ErrUnexpectedEOF
		}
		sum := binary.LittleEndian.Uint32(data[length:])
		return data[:length], sum == masked(data[:length]), nil
	}
	records := func(fsys fs.FS, name string) dataloader.Stream[[]byte] {
		return dataloader.FromSeq(func(context.Context, int) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				file, err := fsys.Open(name)
				if err != nil {
					yield(nil, err)
					return
				}
				defer file.Close()
				r := bufio.NewReaderSize(file, 1<<20)
				for k := 0; ; k++ {
					data, sound, err := read(r)
					if err == io.EOF {
						return
					}
					if err != nil {
						yield(nil, fmt.Errorf("%s, record %d: %w", name, k, err))
						return
					}
					if !sound {
						data, err = nil, fmt.Errorf("%s, record %d: its sum is wrong", name, k)
					}
					if !yield(data, err) {
						return
					}
				}
			}
		})
	}

	// An empty record as TensorFlow writes it, and four of our own.
	content := "\x00\x00\x00\x00\x00\x00\x00\x00\x29\x03\x98\x07\xd8\xea\x82\xa2"
	for _, text := range []string{"cat", "cow", "dog", "rat"} {
		frame := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
		frame = binary.LittleEndian.AppendUint32(frame, masked(frame))
		frame = binary.LittleEndian.AppendUint32(append(frame, text...), masked([]byte(text)))
		content += string(frame)
	}
	content = strings.Replace(content, "cow", "cew", 1) // damaged
	fsys := fstest.MapFS{                               // or os.DirFS
		"a": {Data: []byte(content[:len(content)-1])}, // truncated
		"b": {Data: []byte("another file")},
	}
	for _, name := range []string{"a", "b"} {
		for data, err := range records(fsys, name).Epoch(context.Background(), 0) {
			var bad *dataloader.SampleError
			if errors.As(err, &bad) {
				fmt.Println(bad.Err)
			} else if err != nil {
				log.Fatal(err)
			} else {
				fmt.Printf("%q\n", data)
			}
		}
	}
	// Output:
	// ""
	// "cat"
	// a, record 2: its sum is wrong
	// "dog"
	// a, record 4: unexpected EOF
	// b, record 0: no TFRecord, or damaged: 61 6e 6f 74 68 65 72 20 66 69 6c 65
}

// # Fixtures: what the demonstrations need, and you do not

// npy is an array file as NumPy writes it.
func npy(version byte, descr, fortran, shape, data string) string {
	header := fmt.Sprintf("{'descr': %s, 'fortran_order': %s, 'shape': %s, }", descr, fortran,
		shape)
	header += strings.Repeat(" ", 63-(len(header)+10)%64) + "\n"
	length := binary.LittleEndian.AppendUint16(nil, uint16(len(header)))
	if version > 1 {
		length = append(length, 0, 0)
	}
	return "\x93NUMPY" + string(version) + "\x00" + string(length) + header + data
}
