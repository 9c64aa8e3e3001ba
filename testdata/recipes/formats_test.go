package recipes

// Files in the formats of other programs.
//
//	Example_filesOrShards  files of many kinds, in a folder or in shards
//	Example_mnist          MNIST's files, gzipped, as they are published
//	Example_npz            NumPy's .npz archives
//	Example_bfloat16       arrays of bfloat16
//	Example_tfrecord       TFRecord files, with their checksums
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

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
	"math"
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

// readIDX reads a gzipped array with so many dimensions, in MNIST's format IDX:
// the bytes 0, 0, 8 for uint8 and dims, the lengths, and the data.
// Fashion-MNIST, KMNIST and EMNIST have it, too.
func readIDX(fsys fs.FS, name string, dims int) (t dataloader.Tensor[uint8], err error) {
	file, err := fsys.Open(name)
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

// A labeled is an image, and the number that it shows.
type labeled = dataloader.Pair[dataloader.Tensor[float32], dataloader.Tensor[uint8]]

// mnist joins MNIST's images and labels. An image becomes float32 as it is
// fetched, so the whole set stays in a quarter of the memory.
func mnist(fsys fs.FS, images, labels string) (dataloader.Dataset[labeled], error) {
	pixels, err1 := readIDX(fsys, images, 3)
	digits, err2 := readIDX(fsys, labels, 1)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	rows, err1 := dataloader.Rows(pixels)
	targets, err2 := dataloader.Rows(digits)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	scaled := dataloader.Transform(rows, toFloats)
	return dataloader.Pairs(scaled, targets)
}

// toFloats maps bytes to the numbers from 0 to 1.
func toFloats(_ context.Context, image dataloader.Tensor[uint8]) (
	x dataloader.Tensor[float32], err error,
) {
	x.Data, x.Shape = make([]float32, len(image.Data)), image.Shape
	for j, p := range image.Data {
		x.Data[j] = float32(p) / 255
	}
	return x, nil
}

// MNIST's files, as they are published, become a data set and batches.
func Example_mnist() {
	folder := fstest.MapFS{ // or os.DirFS; here three images of 2 by 2 pixels
		"train-images-idx3-ubyte.gz": {Data: compressed("\x00\x00\x08\x03" +
			"\x00\x00\x00\x03\x00\x00\x00\x02\x00\x00\x00\x02" +
			"\x00\x33\x00\x33" + "\x66\x00\x66\x00" + "\xff\xff\xff\xff")},
		"train-labels-idx1-ubyte.gz": {Data: compressed("\x00\x00\x08\x01" +
			"\x00\x00\x00\x03" + "\x07\x04\x09")},
	}
	data, err := mnist(folder, "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
	if err != nil {
		log.Fatal(err)
	}
	collate := dataloader.CollatePair(dataloader.Stack[float32], dataloader.Stack[uint8])
	loader, err := dataloader.New(data, collate, dataloader.Options{
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

// NumPy has no bfloat16, so ml_dtypes saves it as 2 bytes without a type, V2,
// which Decode refuses. Such a number is the upper half of a float32. An array
// that is saved as x.view(numpy.uint16) needs no other descr.
func Example_bfloat16() {
	file := npy(1, "'<V2'", "False", "(3,)", "\x80\x3f\x00\xc0\x49\x40") // 1, -2 and pi
	data := bytes.Replace([]byte(file), []byte("'<V2'"), []byte("'<u2'"), 1)
	value, err := dataloader.Decode("npy", data)
	if err != nil {
		log.Fatal(err)
	}
	halves := value.(dataloader.Tensor[uint16])
	x := dataloader.Tensor[float32]{Shape: halves.Shape}
	for _, half := range halves.Data {
		x.Data = append(x.Data, math.Float32frombits(uint32(half)<<16))
	}
	fmt.Println(x.Data)
	// Output: [1 -2 3.140625]
}

// maskedSum is TensorFlow's checksum: a CRC-32C that is rotated, plus a
// constant.
func maskedSum(data []byte) uint32 {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return bits.RotateLeft32(sum, 17) + 0xa282ead8
}

// A framed record is data, and whether their sum is right.
type framed struct {
	data  []byte
	sound bool
}

// readFrame reads a record: its length in 8 bytes, a sum of these, the data,
// and a sum of them. At the end of the file its error is io.EOF.
func readFrame(file io.Reader) (f framed, err error) {
	var head [12]byte
	if _, err := io.ReadFull(file, head[:]); err != nil {
		return f, err
	}
	length := binary.LittleEndian.Uint64(head[:])
	if binary.LittleEndian.Uint32(head[8:]) != maskedSum(head[:8]) || length > 1<<30 {
		return f, fmt.Errorf("no TFRecord, or damaged: % x", head)
	}
	f.data = make([]byte, length+4)
	if _, err = io.ReadFull(file, f.data); err == io.EOF {
		err = io.ErrUnexpectedEOF // the file ends behind the head
	}
	sum := binary.LittleEndian.Uint32(f.data[length:])
	f.data = f.data[:length]
	f.sound = sum == maskedSum(f.data)
	return f, err
}

// tfrecords is the stream of a file's records. A record with a wrong sum is a
// failed item. A length with a wrong sum, or a truncated file, costs the rest
// of the file, also as one item, since nobody knows where the next record
// begins. A resume reads the file again, up to its place.
func tfrecords(fsys fs.FS, name string) dataloader.Stream[[]byte] {
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
				f, err := readFrame(r)
				switch {
				case err == io.EOF:
					return
				case err != nil:
					yield(nil, fmt.Errorf("%s, record %d: %w", name, k, err))
					return
				case !f.sound:
					f.data, err = nil, fmt.Errorf("%s, record %d: its sum is wrong", name, k)
				}
				if !yield(f.data, err) {
					return
				}
			}
		}
	})
}

// TFRecord files, as TensorFlow writes them. Most records are messages
// tf.Example: decode them with a package for protocol buffers in a Map. Several
// files are mixed as in Example_jsonLinesGzip.
func Example_tfrecord() {
	// An empty record as TensorFlow writes it, and four of our own.
	content := "\x00\x00\x00\x00\x00\x00\x00\x00\x29\x03\x98\x07\xd8\xea\x82\xa2"
	for _, text := range []string{"cat", "cow", "dog", "rat"} {
		content += frame(text)
	}
	content = strings.Replace(content, "cow", "cew", 1) // damaged
	fsys := fstest.MapFS{                               // or os.DirFS
		"a": {Data: []byte(content[:len(content)-1])}, // truncated
		"b": {Data: []byte("another file")},
	}
	for _, name := range []string{"a", "b"} {
		for data, err := range tfrecords(fsys, name).Epoch(context.Background(), 0) {
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

// # Fixtures, which the Examples need, and a program does not

// compressed compresses data by gzip.
func compressed(data string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, data)
	if err := errors.Join(err, w.Close()); err != nil {
		log.Fatal(err)
	}
	return b.Bytes()
}

// frame is a text as a record of a TFRecord file.
func frame(text string) string {
	f := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	f = binary.LittleEndian.AppendUint32(f, maskedSum(f))
	f = binary.LittleEndian.AppendUint32(append(f, text...), maskedSum([]byte(text)))
	return string(f)
}

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
