package recipes

// Files of tokens, for language models.
//
//	Example_tokenFile  .bin files of llm.c and nanoGPT
//	Example_megatron   Megatron-LM's .idx and .bin
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"dataloader"
)

// A tokenFile is a file of tokens as llm.c writes it: 256 int32, of which the
// first three are a magic number, a version and the number of tokens, then
// uint16 for GPT-2 or uint32 for Llama 3. A file of uint16 without a header,
// such as nanoGPT's, has begin 0, width 2, and half as many tokens as bytes.
type tokenFile struct {
	*os.File
	begin, width, tokens int // begin and width in bytes
}

// openTokens opens a file of llm.c. Nothing would fail without the checks: the
// header would be 512 tokens, and another kind of file would be noise.
func openTokens(name string) (f tokenFile, err error) {
	if f.File, err = os.Open(name); err != nil {
		return f, err
	}
	var head [256]int32
	if err := binary.Read(f, binary.LittleEndian, &head); err != nil {
		return f, fmt.Errorf("%s: the header: %w", name, err)
	}
	f.begin, f.tokens = 4*len(head), int(head[2])
	switch [2]int32(head[:]) {
	case [2]int32{20240520, 1}:
		f.width = 2
	case [2]int32{20240801, 7}:
		f.width = 4
	default:
		return f, fmt.Errorf("%s begins with %d, which no file of tokens does", name, head[:2])
	}
	info, err := f.Stat()
	if err == nil && info.Size() != int64(f.begin)+int64(f.width)*int64(f.tokens) {
		err = fmt.Errorf("%s has %d bytes, too few or too many for %d tokens",
			name, info.Size(), f.tokens)
	}
	return f, err
}

// read fills ids with the tokens from the first on. Its buffer has four bytes
// for each of them. It may be called by several goroutines, as ReadAt may, and
// Read may not. The check of the ids takes 0.15 ns a token. It is the only one
// for a file without a header, and finds tokens of another width or tokenizer.
func (f tokenFile) read(ids []int64, first int, vocabulary int64, buf []byte) error {
	buf = buf[:f.width*len(ids)]
	if _, err := f.ReadAt(buf, int64(f.begin)+int64(f.width)*int64(first)); err != nil {
		return fmt.Errorf("%s: token %d: %w", f.Name(), first, err)
	}
	for t := range ids {
		if f.width == 2 {
			ids[t] = int64(binary.LittleEndian.Uint16(buf[2*t:]))
		} else {
			ids[t] = int64(binary.LittleEndian.Uint32(buf[4*t:]))
		}
		if ids[t] >= vocabulary {
			return fmt.Errorf("%s: token %d is %d, in a vocabulary of %d",
				filepath.Base(f.Name()), first+t, ids[t], vocabulary)
		}
	}
	return nil
}

// A tokenBatch has inputs and targets, which are the tokens one further on,
// both of the shape [rows, window].
type tokenBatch = dataloader.Pair[dataloader.Tensor[int64], dataloader.Tensor[int64]]

// tokenWindows returns how many windows the files have, and loads batches of
// them for NewBatchFunc, into the memory of a batch that was given back by
// Recycle. The windows of a file follow each other, so each token is an input
// once an epoch. For windows that begin at any token, a file has tokens -
// window of them, and window i of the file begins at token i.
func tokenWindows(files []tokenFile, window int, vocabulary int64) (
	n int, load func(context.Context, tokenBatch, []int) (tokenBatch, error),
) {
	var ends []int // of the windows in files[:k+1]
	for _, f := range files {
		n += (f.tokens - 1) / window // the last target is one token behind the last window
		ends = append(ends, n)
	}
	return n, func(_ context.Context, dst tokenBatch, indices []int) (tokenBatch, error) {
		size := len(indices) * window
		for _, t := range []*dataloader.Tensor[int64]{&dst.First, &dst.Second} {
			t.Data = slices.Grow(t.Data[:0], size)[:size]
			t.Shape = append(t.Shape[:0], len(indices), window)
		}
		ids, buf := make([]int64, window+1), make([]byte, 4*(window+1))
		for j, i := range indices {
			k, _ := slices.BinarySearch(ends, i+1) // window i is in file k
			f := files[k]
			first := (i - ends[k] + (f.tokens-1)/window) * window
			if err := f.read(ids, first, vocabulary, buf); err != nil {
				return dst, err
			}
			copy(dst.First.Data[j*window:], ids[:window])
			copy(dst.Second.Data[j*window:], ids[1:])
		}
		return dst, nil
	}
}

// A language model is fed with windows of the tokens of several files, by
// workers that share the open files. It is faster still if the files are mapped
// into memory (see mapped): nothing is read then.
func Example_tokenFile() {
	dir, err := os.MkdirTemp("", "tokens")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var files []tokenFile
	for _, name := range []string{
		writeBinary(dir, "0.bin", [256]int32{20240520, 1, 8}, []uint16{0, 1, 2, 3, 4, 5, 6, 7}),
		writeBinary(dir, "1.bin", [256]int32{20240801, 7, 7},
			[]uint32{10, 11, 12, 13, 128255, 15, 16}),
		writeBinary(dir, "nano.bin", make([]uint16, 600)),
		writeBinary(dir, "cut.bin", [256]int32{20240520, 1, 600}, make([]uint16, 599)),
	} {
		f, err := openTokens(name)
		if err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), dir, "…"))
			continue
		}
		defer f.Close()
		files = append(files, f)
	}

	n, load := tokenWindows(files, 3, 50257)
	loader, err := dataloader.NewBatchFunc(n, load, dataloader.Options{
		BatchSize: 2, Shuffle: true, Seed: 2, Workers: 2, DataVersion: "files 0 and 1",
	})
	if err != nil {
		log.Fatal(err)
	}
	for b, err := range loader.Epoch(context.Background(), 0) {
		if err != nil {
			fmt.Println(err) // in a training the end
			continue
		}
		fmt.Println(b.First.Shape, b.First.Data, b.Second.Data) // train
		loader.Recycle(b)
	}
	// Output:
	// …/nano.bin begins with [0 0], which no file of tokens does
	// …/cut.bin has 2222 bytes, too few or too many for 600 tokens
	// [2 3] [3 4 5 10 11 12] [4 5 6 11 12 13]
	// dataloader: epoch 0, batch 1: 1.bin: token 4 is 128255, in a vocabulary of 50257
}

// megatron opens Megatron-LM's data: train.idx has the lengths and places of
// the sequences, and train.bin, which has size bytes, their tokens, as int32 or
// uint16. The index must be as long as it says, and the sequences must follow
// each other and fill train.bin, so files that do not belong together, a
// truncated one and other types are errors. A sample is a sequence, usually a
// document: pack them as in Example_packedDocuments. An index takes 12 bytes a
// sequence in memory.
func megatron(index []byte, bin io.ReaderAt, size int64) (dataloader.Dataset[[]int32], error) {
	const magic = "MMIDIDX\x00\x00"
	var head struct {
		Magic                [len(magic)]byte
		Version              uint64
		Type                 uint8
		Sequences, Documents uint64
	}
	r := bytes.NewReader(index)
	err := binary.Read(r, binary.LittleEndian, &head)
	if err != nil || string(head.Magic[:]) != magic || head.Version != 1 {
		return nil, errors.New("the index is no Megatron-LM index of version 1")
	}
	width, known := map[uint8]int64{4: 4, 8: 2}[head.Type]
	if !known {
		return nil, fmt.Errorf("type %d of tokens, want 4 (int32) or 8 (uint16)", head.Type)
	}
	n, left := head.Sequences, uint64(r.Len())
	if n > left/12 || head.Documents > left/8 || 12*n+8*head.Documents != left {
		return nil, fmt.Errorf("the index has %d bytes for %d sequences", left, n)
	}
	lengths, begins := make([]int32, n), make([]int64, n)
	err = errors.Join(binary.Read(r, binary.LittleEndian, lengths),
		binary.Read(r, binary.LittleEndian, begins))
	if err != nil {
		return nil, err
	}
	end := int64(0)
	for i, length := range lengths {
		if length < 0 || begins[i] != end {
			return nil, fmt.Errorf("sequence %d does not begin where the last one ends", i)
		}
		end += width * int64(length)
	}
	if end != size {
		return nil, fmt.Errorf("the index is of %d bytes of tokens, not of %d", end, size)
	}
	return dataloader.Func(int(n), func(_ context.Context, i int) ([]int32, error) {
		data := make([]byte, width*int64(lengths[i]))
		if n, err := bin.ReadAt(data, begins[i]); n < len(data) {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
		tokens := make([]int32, lengths[i])
		for k := range tokens {
			if width == 2 {
				tokens[k] = int32(binary.LittleEndian.Uint16(data[2*k:]))
			} else {
				tokens[k] = int32(binary.LittleEndian.Uint32(data[4*k:]))
			}
		}
		return tokens, nil
	}), nil
}

// Megatron-LM's .idx and .bin files become a data set of sequences.
func Example_megatron() {
	// In a program os.ReadFile("train.idx"), os.Open("train.bin") and its size.
	index := []byte("MMIDIDX\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x08" +
		"\x02\x00\x00\x00\x00\x00\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" +
		"\x02\x00\x00\x00" + "\x01\x00\x00\x00" + // lengths
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00\x00\x00\x00\x00" + // begins
		strings.Repeat("\x00", 24)) // the documents
	const bin = "\x07\x00\xff\xff\x01\x02"
	for _, bin := range []string{bin, bin[:4]} {
		data, err := megatron(index, strings.NewReader(bin), int64(len(bin)))
		if err != nil {
			fmt.Println(err)
			continue
		}
		for i := range data.Len() {
			fmt.Println(data.Get(context.Background(), i))
		}
	}
	_, err := megatron(index[:40], nil, 0)
	fmt.Println(err)
	// Output:
	// [7 65535] <nil>
	// [513] <nil>
	// the index is of 6 bytes of tokens, not of 4
	// the index has 6 bytes for 2 sequences
}

// # Fixtures, which the Examples need, and a program does not

// writeBinary writes a file of little-endian numbers, and returns its name.
func writeBinary(dir, name string, parts ...any) string {
	var b bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			log.Fatal(err)
		}
	}
	name = filepath.Join(dir, name)
	if err := os.WriteFile(name, b.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}
	return name
}
