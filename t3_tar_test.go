package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The tests of tar shards: first helpers, then the stream, archives that others wrote, the web reader, the index, the
// writer, Expand and Decode.

// tarEntries returns an archive of entries: "name=content" is a file, "name>target" a hard link, "name@target" a
// symbolic link, and a name by itself a folder.
func tarEntries(entries ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Typeflag: tar.TypeDir, Name: e, Mode: 0o444}
		content := ""
		if i := strings.IndexAny(e, "=>@"); i >= 0 {
			h.Typeflag = map[byte]byte{'=': tar.TypeReg, '>': tar.TypeLink, '@': tar.TypeSymlink}[e[i]]
			h.Name, h.Linkname = e[:i], e[i+1:]
		}
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
		}
		h.Size = int64(len(content))
		must(0, w.WriteHeader(&h))
		must(io.WriteString(w, content))
	}
	must(0, w.Close())
	return b.Bytes()
}

// withBytes returns data with other bytes at an offset.
func withBytes(data []byte, at int, bytes string) []byte {
	return slices.Concat(data[:at], []byte(bytes), data[min(at+len(bytes), len(data)):])
}

// withSum corrects the checksum of the header at an offset.
func withSum(data []byte, at int) []byte {
	sum := 0
	for _, c := range withBytes(data, at+148, "        ")[at : at+512] {
		sum += int(c)
	}
	return withBytes(data, at+148, fmt.Sprintf("%06o\x00 ", sum))
}

// gzipped compresses data.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must(w.Write(data))
	must(0, w.Close())
	return b.Bytes()
}

// inMemory is an Opener of shards in memory.
func inMemory(shards map[string][]byte) Opener {
	return func(_ context.Context, name string, offset int64) (io.ReadCloser, error) {
		data, ok := shards[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(bytes.NewReader(data[min(offset, int64(len(data))):])), nil
	}
}

// opening is an Opener that returns the same reader for every shard.
func opening(r io.Reader) Opener {
	c, ok := r.(io.ReadCloser)
	if !ok {
		c = io.NopCloser(r)
	}
	return func(context.Context, string, int64) (io.ReadCloser, error) { return c, nil }
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// breaksAfter is a reader that yields data, and then what fail does.
func breaksAfter(data []byte, fail func() error) io.Reader {
	return io.MultiReader(bytes.NewReader(data), readerFunc(func([]byte) (int, error) { return 0, fail() }))
}

// A countingFile is a file in memory, which can seek. It counts the bytes that are read.
type countingFile struct {
	*bytes.Reader
	read   int
	closed bool
}

func (f *countingFile) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.read += n
	return n, err
}

func (f *countingFile) Close() error {
	f.closed = true
	return nil
}

// brief writes a record as "key{field:content …}".
func brief(r Record) string {
	var files []string
	for _, f := range r.Files {
		content := string(f.Data)
		if len(content) > 40 {
			content = fmt.Sprintf("%d bytes #%x", len(content), crc32.ChecksumIEEE(f.Data))
		}
		files = append(files, f.Name+":"+content)
	}
	return r.Key + "{" + strings.Join(files, " ") + "}"
}

// briefly is a stream of records in brief.
func briefly(s Stream[Record]) Stream[string] {
	return Map(s, 0, func(_ context.Context, r Record) (string, error) { return brief(r), nil })
}

// tarOf is a stream of shards in memory, named 0, 1, …, in brief.
func tarOf(opts TarOptions, shards ...[]byte) Stream[string] {
	all, names := map[string][]byte{}, []string{"0", "1", "2"}[:len(shards)]
	for i, data := range shards {
		all[names[i]] = data
	}
	opts.Open = inMemory(all)
	return briefly(must(Tar(names, opts)))
}

// tarOutcomes reads the first epoch of shards through an Opener.
func tarOutcomes(t testing.TB, open Opener, shards ...string) []string {
	return outcomes(briefly(must(Tar(shards, TarOptions{Open: open}))).Epoch(t.Context(), 0))
}

// onDisk writes a shard into a folder of the test's, and its index beside it unless that is empty.
func onDisk(t testing.TB, name string, data []byte, index ...string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	must(0, os.WriteFile(name, data, 0o666))
	for _, text := range index {
		must(0, os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", []byte(text), 0o666))
	}
	return name
}

// indexed reads all records of a data set in brief, or the error of OpenTar.
func indexed(t testing.TB, paths ...string) []string {
	t.Helper()
	d, err := OpenTar(paths...)
	if err != nil {
		return []string{"error " + err.Error()}
	}
	defer d.Close()
	return outcomes(briefly(Map(Indices(Sequential(d.Len())), 0, d.Get)).Epoch(t.Context(), 0))
}

// writeIndex writes the index of a shard.
func writeIndex(name string) error {
	d := must(OpenTar(name))
	defer d.Close()
	return d.WriteIndex()
}

// isError reports whether an outcome is an error.
func isError(outcome string) bool { return strings.HasPrefix(outcome, "error") }

// TestTarGrouping shows which entries make which records, as a stream and by index.
func TestTarGrouping(t *testing.T) {
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{[]string{"a.txt=1", "a.cls=2", "b.txt=3", "b.cls=4"}, "a{txt:1 cls:2} b{txt:3 cls:4}"},
		{[]string{"a.txt=1", "b.txt=2", "a.cls=3", "b.cls=4"}, "a{txt:1} b{txt:2} a{cls:3} b{cls:4}"},
		{[]string{"d/", "d/a.txt=1", "e/", "d/a.cls=2"}, "d/a{txt:1 cls:2}"},
		{[]string{"a.txt=1", "b.txt@a.txt", "a.cls=2"}, "a{txt:1 cls:2}"},
		{[]string{"a.txt=1", "README=2", "a.cls=3"}, "a{txt:1 cls:3}"},
		{[]string{"README=1", "d/LICENSE=2", "a.x/noext=3"}, ""},
		{[]string{"a.TXT=1"}, "a{txt:1}"},
		{[]string{"A.txt=1", "a.cls=2"}, "A{txt:1} a{cls:2}"},
		{[]string{"a.Seg.PNG=1", "a/b.c.d=1", "a.x/b.txt=1", "./a.txt=1", "a.=1", "a..b=1"}, "a{seg.png:1} a/b{c.d:1} a.x/b{txt:1} ./a{txt:1} a{:1 .b:1}"},
		{[]string{"/some/22.0/1.1.png=1", `a\b.txt=1`, "a.txt.gz=1"}, `/some/22.0/1{1.png:1} a\b{txt:1} a{txt.gz:1}`},
		{[]string{".hidden=1", "./.hidden=1", "d/.hidden=1", "a.b/.hidden=1", "..a=1", "d/._a.txt=1", ".a.txt=1", "d/.b.txt=1"}, ""},
		{[]string{"__meta__=1", "__a.b__=1", "__m__/x.json=1"}, ""},
		{[]string{"__meta__.json=1", "d/__m__/x.json=2", "__/x.txt=3"}, "__meta__{json:1} d/__m__/x{json:2} __/x{txt:3}"},
		{[]string{"x.__key__=1", "x.__bad__=2"}, "x{__key__:1 __bad__:2}"},
		{[]string{"a.txt=", "a.cls="}, "a{txt: cls:}"},
		{[]string{"../../etc/x.txt=1", "/abs/y.txt=2"}, "../../etc/x{txt:1} /abs/y{txt:2}"},
		{[]string{strings.Repeat("long/", 40) + "a.txt=1"}, strings.Repeat("long/", 40) + "a{txt:1}"},
		{[]string{strings.Repeat("long/", 60) + "ü.txt=1"}, strings.Repeat("long/", 60) + "ü{txt:1}"},
	} {
		data := tarEntries(c.entries...)
		equal(t, fmt.Sprint(c.entries), strings.Join(checkStream(t, tarOf(TarOptions{}, data), 0), " "), c.want)
		equal(t, fmt.Sprint("indexed ", c.entries), strings.Join(indexed(t, onDisk(t, "x.tar", data)), " "), c.want)
	}
	// Records do not span shards, and a shard may come twice.
	one, two := tarEntries("a.txt=1"), tarEntries("a.cls=2")
	equal(t, "two shards", checkStream(t, tarOf(TarOptions{}, one, two, one), 0), "[a{txt:1} a{cls:2} a{txt:1}]")
	// An empty file is a field. A missing file is not.
	for r := range must(Tar([]string{"x"}, TarOptions{Open: opening(bytes.NewReader(tarEntries("a.txt=")))})).Epoch(t.Context(), 0) {
		if r.Get("txt") == nil || r.Get("cls") != nil || r.Shard != "x" {
			t.Errorf("txt %v, cls %v, shard %q", r.Get("txt"), r.Get("cls"), r.Shard)
		}
	}
	// A record may have many files.
	var many []string
	for i := range 20000 {
		many = append(many, fmt.Sprintf("clip.%05d=", i))
	}
	for r := range must(Tar([]string{"x"}, TarOptions{Open: opening(bytes.NewReader(tarEntries(many...)))})).Epoch(t.Context(), 0) {
		equal(t, "files", len(r.Files), 20000)
	}
}

// TestTarFields shows that only the wanted fields are yielded, and that others are skipped without being read.
func TestTarFields(t *testing.T) {
	data := tarEntries("a.png=1", "a.cls=2", "b.png=3", "c.cls=4", "c.big="+strings.Repeat("x", 1000))
	read := func(opts TarOptions) []string { return checkStream(t, tarOf(opts, data), 0) }
	equal(t, "png", read(TarOptions{Fields: []string{"png"}}), "[a{png:1} b{png:3} c{}]")
	equal(t, "not read", read(TarOptions{Fields: []string{"CLS", "png"}, MaxFile: 350}), "[a{png:1 cls:2} b{png:3} c{cls:4}]")
	equal(t, "none", read(TarOptions{Fields: []string{}}), "[a{} b{} c{}]")

	large := tarEntries("a.big="+strings.Repeat("x", 5<<20), "a.cls=1", "b.big="+strings.Repeat("x", 5<<20), "b.cls=2")
	file := &countingFile{Reader: bytes.NewReader(large)}
	stream := must(Tar([]string{"x"}, TarOptions{Fields: []string{"cls"}, Open: opening(file)}))
	equal(t, "seeking", outcomes(briefly(stream).Epoch(t.Context(), 0)), "[a{cls:1} b{cls:2}]")
	if file.read > 4*tarBuffer || !file.closed {
		t.Errorf("%d bytes of %d were read; closed %t", file.read, len(large), file.closed)
	}
}

// A tarFault is a shard with a fault, or without: the records that come before the error, and what the error says.
type tarFault struct {
	name string
	data []byte
	want []string
	says []string // nil: there is no error
}

// tarFaults returns every fault of a shard that there may be.
func tarFaults() []tarFault {
	second := strings.Repeat("second", 200)
	// a.txt is at 0, a.cls at 1024, b.txt at 2048, b.cls at 4096, c.txt at 5120, c.cls at 6144, the end at 7168.
	sound := tarEntries("a.txt=first", "a.cls=1", "b.txt="+second, "b.cls=2", "c.txt=third", "c.cls=3")
	a, c := "a{txt:first cls:1}", "c{txt:third cls:3}"
	b := brief(Record{Key: "b", Files: []File{{"txt", []byte(second)}, {"cls", []byte("2")}}})
	packed := gzipped(sound)
	sized := func(size string) []byte { return withSum(withBytes(sound, 5120+124, size), 5120) }
	twice := func(data []byte) []byte { return slices.Concat(data, data) }
	return []tarFault{
		{"sound", sound, []string{a, b, c}, nil},
		{"half an end marker", sound[:7168+512], []string{a, b, c}, nil},
		{"gzip", packed, []string{a, b, c}, nil},
		{"two gzip members", append(gzipped(sound[:3000]), gzipped(sound[3000:])...), []string{a, b, c}, nil},
		{"no end marker", sound[:7168], []string{a, b}, []string{"no end marker", `entry "c.cls"`, "offset 7168", `record "c", which may lack files, is left out`}},
		{"truncated between records", sound[:5120], []string{a}, []string{"no end marker", `entry "b.cls"`, "offset 5120", `record "b", which may lack files`}},
		{"truncated between files", sound[:4096], []string{a}, []string{"no end marker", `entry "b.txt"`, `record "b"`}},
		{"truncated in data", sound[:3000], []string{a}, []string{"unexpected EOF", `entry "b.txt"`, "offset 2048", `record "b"`}},
		{"truncated in padding", sound[:7000], []string{a, b}, []string{"unexpected EOF", `entry "c.cls"`, `record "c"`}},
		{"truncated in a header", sound[:5120+100], []string{a}, []string{"truncated", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"truncated after the first header", sound[:512], nil, []string{"unexpected EOF", `entry "a.txt"`, `record "a"`}},
		{"truncated in an end marker", sound[:7168+700], []string{a, b}, []string{"unexpected EOF", `record "c"`}},
		{"truncated after a long name", tarEntries(strings.Repeat("ü", 60) + ".txt=1")[:1024], nil, []string{"unexpected EOF"}},
		{"bad checksum", withBytes(sound, 5120+10, "x"), []string{a}, []string{"the headers that come next: archive/tar: invalid tar header", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"bad number", withSum(withBytes(sound, 5120+108, "zzzz"), 5120), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"a block of zeros inside", withBytes(sound, 5120, strings.Repeat("\x00", 512)), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"two archives", twice(sound), []string{a, b, c}, []string{"after the end marker", `entry ""`, "offset 7168"}},
		{"4 EiB", sized("\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"), []string{a, b}, []string{`entry "c.txt"`, "4611686018427387904 bytes make the record larger than MaxFile, 1073741824"}},
		{"2^63-1 bytes", sized("\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"), []string{a, b}, []string{`entry "c.txt"`, "9223372036854775807 bytes"}},
		{"negative size", sized("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), []string{a}, []string{"invalid tar header"}},
		{"a bad record, and truncated", tarEntries("a.txt=first", "a.cls=1", "b.txt=", "b.txt=")[:3072], []string{a}, []string{`has another field "txt"`, "truncated", `record "b"`}},
		{"no bytes", nil, nil, []string{"the archive is empty", `shard "0"`}},
		{"no bytes in gzip", gzipped(nil), nil, []string{"the archive is empty"}},
		{"a page", []byte("<!DOCTYPE html>" + strings.Repeat("<p>Not found</p>", 100)), nil, []string{"invalid tar header"}},
		{"a short page", []byte("<!DOCTYPE html>"), nil, []string{"truncated"}},
		{"gzip truncated", packed[:len(packed)/2], nil, []string{"unexpected EOF", `record "a"`}},
		{"gzip truncated at its end", packed[:len(packed)-4], []string{a, b, c}, []string{"unexpected EOF"}},
		{"gzip with a flipped sum", withBytes(packed, len(packed)-6, string(packed[len(packed)-6]^1)), []string{a, b, c}, []string{"gzip: invalid checksum"}},
		{"gzip and more", slices.Concat(packed, []byte("and something more")), []string{a, b, c}, []string{"gzip: invalid header"}},
		{"two compressed archives", twice(packed), []string{a, b, c}, []string{"after the end marker"}},
		{"no gzip", []byte("\x1f\x8b"), nil, []string{"unexpected EOF"}},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), nil, []string{"compressed with xz"}},
		{"zstd", []byte("\x28\xb5\x2f\xfd\x04"), nil, []string{"compressed with zstd"}},
	}
}

// TestTarFaults shows that no fault of a shard is silent: the records before it come, then one TarError, then the next
// shard. Other readers lose most of these in silence.
func TestTarFaults(t *testing.T) {
	for _, f := range tarFaults() {
		t.Run(f.name, func(t *testing.T) {
			next := tarEntries("c.cls=4", "d.cls=5")
			stream := tarOf(TarOptions{}, f.data, next)
			got := checkStream(t, stream, 0)
			want := append(slices.Clone(f.want), "c{cls:4}", "d{cls:5}")
			if f.says != nil {
				if len(got) != len(want)+1 {
					t.Fatalf("got %q", got)
				}
				saysAll(t, errors.New(got[len(f.want)]), f.says...)
				got = slices.Delete(got, len(f.want), len(f.want)+1)
			}
			equal(t, "records", got, want)
			for _, err := range stream.Epoch(t.Context(), 0) {
				if e := (*TarError)(nil); err != nil && (!errors.As(err, &e) || e.Shard != "0") {
					t.Errorf("no TarError: %v", err)
				}
			}
			if bytes.HasPrefix(f.data, []byte("\x1f")) {
				return
			}
			if got := indexed(t, onDisk(t, "x.tar", f.data)); f.says == nil {
				equal(t, "indexed", got, f.want)
			} else if !isError(got[len(got)-1]) {
				t.Errorf("OpenTar yields %q", got)
			}
		})
	}
}

// TestTarBadRecords shows that a fault of one record costs that record and no other, as a stream and by index. The
// record after it has exactly as many bytes as MaxFile allows.
func TestTarBadRecords(t *testing.T) {
	for _, c := range []struct {
		entries       []string
		says, indexed string
	}{
		{[]string{"b.txt=1", "b.cls=2", "b.TXT=3", "b.png=4"}, `entry "b.TXT", offset 4096: record "b" has another field "txt"`, "error"},
		{[]string{"b.txt=1", "b.cls>a.txt", "b.png=4"}, `entry "b.cls", offset 3072: it is a hard link to "a.txt"`, "b{txt:1 cls:first png:4}"},
		{[]string{"b.txt>a.txt", "b.cls>b.txt"}, `it is a hard link to "a.txt"`, "b{txt:first cls:first}"},
		{[]string{"b.txt=1", "b.cls>c.txt", "b.png=4"}, `it is a hard link to "c.txt"`, "error"},
		{[]string{"README=1", "b.txt>README", "b.png=4"}, `it is a hard link to "README"`, "b{txt:1 png:4}"},
		{[]string{"b.txt=" + strings.Repeat("x", 6), "b.cls=" + strings.Repeat("y", 5), "b.png="}, "its 5 bytes make the record larger than MaxFile, 340", "b{txt:xxxxxx cls:yyyyy png:}"},
		{[]string{"b.cls=", "b.txt=" + strings.Repeat("x", 11)}, "its 11 bytes make the record larger than MaxFile, 340", "b{cls: txt:xxxxxxxxxxx}"},
	} {
		data := tarEntries(slices.Concat([]string{"a.txt=first", "a.cls=1"}, c.entries, []string{"c.txt=third", "c.cls=12345"})...)
		got := checkStream(t, tarOf(TarOptions{MaxFile: 340}, data), 1)
		if len(got) != 3 {
			t.Fatalf("%q: %q", c.entries, got)
		}
		saysAll(t, errors.New(got[1]), c.says)
		equal(t, "the others", []string{got[0], got[2]}, "[a{txt:first cls:1} c{txt:third cls:12345}]")
		got = indexed(t, onDisk(t, "x.tar", data))
		if len(got) != 3 || !strings.HasPrefix(got[1], c.indexed) {
			t.Errorf("indexed %q: %q", c.entries, got)
		}
	}
}

// TestTarOptions shows that arguments that make no sense are errors that name them.
func TestTarOptions(t *testing.T) {
	for says, c := range map[string]struct {
		shards []string
		opts   TarOptions
	}{
		"Tar: there are no shards":  {nil, TarOptions{}},
		"shard 1 has an empty name": {[]string{"a", ""}, TarOptions{}},
		"2 shards are too few for 3 ranks: leave TarOptions.Shard out and deal records with Stream.Shard": {[]string{"a", "b"}, TarOptions{Shard: Shard{0, 3}}},
		"Tar: Shard is {Index: 2, Count: 2}":  {[]string{"a", "b"}, TarOptions{Shard: Shard{2, 2}}},
		"MaxFile is -1, must not be negative": {[]string{"a"}, TarOptions{MaxFile: -1}},
	} {
		s, err := Tar(c.shards, c.opts)
		saysAll(t, err, "dataloader: Tar: ", says)
		equal(t, "no stream", s == nil, true)
	}
}

// tenShards returns ten shards of two records each, 0a, 0b, 1a, …
func tenShards() (names []string, shards map[string][]byte) {
	shards = map[string][]byte{}
	for i := range 10 {
		names = append(names, fmt.Sprintf("%d.tar", i))
		shards[names[i]] = tarEntries(fmt.Sprintf("%da.txt=", i), fmt.Sprintf("%db.txt=", i))
	}
	return names, shards
}

// TestTarShards shows how shards are dealt out to ranks: in an order of Random's in each epoch, then every Count-th.
func TestTarShards(t *testing.T) {
	names, shards := tenShards()
	keys := func(opts TarOptions, epoch int) (all []string) {
		opts.Open = inMemory(shards)
		for _, r := range collect(t, must(Tar(names, opts)).Epoch(t.Context(), epoch)) {
			all = append(all, r.Key)
		}
		return all
	}
	equal(t, "in order", keys(TarOptions{}, 3), "[0a 0b 1a 1b 2a 2b 3a 3b 4a 4b 5a 5b 6a 6b 7a 7b 8a 8b 9a 9b]")
	equal(t, "rank 2 of 4", keys(TarOptions{Shard: Shard{2, 4}}, 0), "[2a 2b 6a 6b]")
	equal(t, "rank 1 of 4", keys(TarOptions{Shard: Shard{1, 4}}, 0), "[1a 1b 5a 5b 9a 9b]")
	seen := map[string]bool{}
	for seed := range uint64(3) {
		for epoch := range 3 {
			var want, dealt []string
			for pos := range 10 {
				i := Random(10, seed).Order(epoch)(pos)
				want = append(want, fmt.Sprintf("%da", i), fmt.Sprintf("%db", i))
			}
			equal(t, "shuffled", keys(TarOptions{Shuffle: true, Seed: seed}, epoch), want)
			seen[fmt.Sprint(want)] = true
			for rank := range 3 {
				part := keys(TarOptions{Shuffle: true, Seed: seed, Shard: Shard{rank, 3}}, epoch)
				for k := 0; k < len(part); k += 2 {
					i := rank + 3*(k/2)
					equal(t, "dealt after the shuffle", part[k:k+2], want[2*i:2*i+2])
				}
				dealt = append(dealt, part...)
			}
			slices.Sort(want)
			slices.Sort(dealt)
			equal(t, "all ranks", dealt, want)
		}
	}
	equal(t, "orders of 3 epochs of 3 seeds", len(seen), 9)
	opts := TarOptions{Shuffle: true, Seed: 1, Shard: Shard{1, 2}, Open: inMemory(shards)}
	checkStream(t, briefly(must(Tar(names, opts))), 5)

	// Several shards at once.
	var parts []Stream[Record]
	for i := range 3 {
		parts = append(parts, must(Tar(names, TarOptions{Shard: Shard{i, 3}, Open: inMemory(shards)})).Prefetch(4))
	}
	got := checkStream(t, briefly(Mix(MixOptions{Stop: StopAtLast}, parts...)), 0)
	equal(t, "mixed", got[:6], "[0a{txt:} 1a{txt:} 2a{txt:} 0b{txt:} 1b{txt:} 2b{txt:}]")
	equal(t, "mixed", len(got), 20)
}

// TestTarCursors shows that a cursor fits the same shards in another place, and no other stream.
func TestTarCursors(t *testing.T) {
	names, shards := tenShards()
	read := func(names []string, opts TarOptions, at Cursor) []string {
		t.Helper()
		if opts.Open == nil {
			opts.Open = inMemory(shards)
		}
		return outcomes(briefly(must(Tar(names, opts))).Run(t.Context(), &at))
	}
	after := func(n int, names []string, opts TarOptions) (at Cursor) {
		for range must(Tar(names, opts)).Run(t.Context(), &at) {
			if at.Pos == n {
				break
			}
		}
		return throughJSON(t, at)
	}
	at := after(3, names, TarOptions{Open: inMemory(shards)})
	elsewhere, moved := map[string][]byte{}, []string{}
	for _, name := range names {
		moved = append(moved, "https://host/dir/"+name+"?sig=1")
		elsewhere[moved[len(moved)-1]] = shards[name]
	}
	equal(t, "elsewhere", read(moved, TarOptions{Open: inMemory(elsewhere)}, at)[:2], "[1b{txt:} 2a{txt:}]")
	pair := inMemory(map[string][]byte{"ab": tarEntries("1.txt=", "2.txt="), "c": tarEntries("3.txt=")})
	for _, c := range []struct {
		name  string
		names []string
		opts  TarOptions
		at    Cursor
	}{
		{"fewer shards", names[:9], TarOptions{}, at},
		{"in another order", append(slices.Clone(names[1:]), names[0]), TarOptions{}, at},
		{"shuffled", names, TarOptions{Shuffle: true}, at},
		{"of another rank", names, TarOptions{Shard: Shard{0, 2}}, at},
		{"with the same letters", []string{"a", "bc"}, TarOptions{}, after(1, []string{"ab", "c"}, TarOptions{Open: pair})},
	} {
		got := read(c.names, c.opts, c.at)
		equal(t, c.name, len(got), 1)
		saysAll(t, errors.New(got[0]), "it was made by Tar(", "this is Tar(")
	}

	// After a last shard that failed comes nothing. A shard after the last, or before the first, is an error.
	opts := TarOptions{Shard: Shard{1, 4}, Open: inMemory(nil)}
	stream := must(Tar(names, opts))
	_, cursors := walk(t, stream)
	last := cursors[len(cursors)-1]
	equal(t, "after the last shard", read(names, opts, throughJSON(t, last)), "[]")
	for _, damage := range []func(*tarState){
		func(s *tarState) { s.Shard++ }, func(s *tarState) { s.Shard = -1 }, func(s *tarState) { s.Offset = -1 },
	} {
		state := *last.State.(*tarState)
		damage(&state)
		saysAll(t, errors.New(read(names, opts, Cursor{last.Epoch, last.Pos, state})[0]), "damaged", "3 shards")
	}
}

// walk reads the first epoch of a stream, and returns its outcomes, as Run has them, and the cursors after them.
func walk[T any](t testing.TB, s Stream[T]) (all []string, cursors []Cursor) {
	for item, err := range s(t.Context(), Cursor{}) {
		if item.Err != nil {
			item.Err = itemError(item.Next, item.Err)
		}
		all = append(all, outcomes(one(item.Value, cmp.Or(err, item.Err)))...)
		cursors = append(cursors, item.Next)
	}
	return all, cursors
}

// TestTarOpeners shows that whatever an Opener and its reader do costs one shard, and that readers are closed.
func TestTarOpeners(t *testing.T) {
	data := tarEntries("a.txt=1", "b.txt=2", "c.txt=3")
	rest := "[a{txt:1} b{txt:2} c{txt:3}]"
	opens := func(r io.ReadCloser, err error) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return r, err }
	}
	reads := func(n int, fail func() error) func() (io.ReadCloser, error) {
		return opens(io.NopCloser(breaksAfter(data[:n], fail)), nil)
	}
	denied := []error{errors.New("denied"), io.EOF} // an error that comes once
	for _, c := range []struct {
		name   string
		open   func() (io.ReadCloser, error)
		before int // records
		says   []string
	}{
		{"error", reads(2048+600, func() error { return errBad }), 2, []string{`entry "c.txt"`, "offset 2048", "bad sample", `record "c"`}},
		{"error at once", reads(0, func() error {
			err := denied[0]
			denied = denied[1:]
			return err
		}), 0, []string{"denied", "offset 0"}},
		{"panic", reads(2048+600, func() error { panic("broken") }), 2, []string{`entry "c.txt"`, "panic: broken"}},
		{"panic at once", reads(0, func() error { panic("broken at once") }), 0, []string{"panic: broken at once", "offset 0"}},
		{"panic of the Opener", func() (io.ReadCloser, error) { panic("no shard") }, 0, []string{"panic: no shard"}},
		{"nothing", opens(nil, nil), 0, []string{"the Opener returned neither a reader nor an error"}},
		{"EOF", opens(nil, io.EOF), 0, []string{"EOF"}},
	} {
		got := tarOutcomes(t, func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return c.open()
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, "x", "y")
		if len(got) != c.before+4 {
			t.Fatalf("%s: %q", c.name, got)
		}
		saysAll(t, errors.New(got[c.before]), append(c.says, `shard "x"`)...)
		equal(t, c.name+": the next shard", got[c.before+1:], rest)
	}

	// A reader that returns neither bytes nor an error, between small reads and large ones.
	large := tarEntries("a.txt=" + strings.Repeat("x", 2*tarBuffer))
	for _, n := range []int{0, 100, 1000, len(large) - 100} {
		got := tarOutcomes(t, opening(breaksAfter(large[:n], func() error { return nil })), "x")
		saysAll(t, errors.New(got[len(got)-1]), "multiple Read calls return no data or error")
	}

	for _, fail := range []bool{false, true} { // closed after a break, and when the archive cannot be read
		file := &countingFile{Reader: bytes.NewReader(data)}
		if fail {
			file.Reader = bytes.NewReader(nil)
		}
		for range must(Tar([]string{"x"}, TarOptions{Open: opening(file)})).Epoch(t.Context(), 0) {
			break
		}
		equal(t, "closed", file.closed, true)
	}
}

// TestTarFiles shows how shards in files are opened: a missing one is an error of its own, and a resume seeks.
func TestTarFiles(t *testing.T) {
	name := onDisk(t, "x.tar", tarEntries("a.txt=1", "b.txt=2", "c.txt=3"))
	stream := briefly(must(Tar([]string{filepath.Join(t.TempDir(), "missing.tar"), t.TempDir(), name}, TarOptions{})))
	got := checkStream(t, stream, 0)
	saysAll(t, errors.New(got[0]), "missing.tar", "no such file")
	saysAll(t, errors.New(got[1]), "is a directory")
	equal(t, "the next shard", got[2:], "[a{txt:1} b{txt:2} c{txt:3}]")

	r := must(OpenShard(t.Context(), name, 512))
	defer r.Close()
	equal(t, "from byte 512 on", string(must(io.ReadAll(r))[:1]), "1")
	if r, err := OpenShard(t.Context(), name, -1); r != nil || err == nil {
		t.Errorf("from byte -1 on: %v, %v", r, err)
	}
	if r, err := OpenShard(t.Context(), name+"missing", 0); r != nil || err == nil {
		t.Errorf("a missing file: %v, %v", r, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	if _, err := OpenShard(ctx, name, 0); err != errBad {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestTarContext shows that a context that ends is noticed in a shard without records, and in a shard without an end;
// and that it does not matter any more when the last record has been handed over.
func TestTarContext(t *testing.T) {
	for _, cause := range []error{errBad, io.EOF} {
		for _, block := range [][]byte{tarEntries("README=")[:512], gzipped(bytes.Repeat(tarEntries("README=")[:512], 2048))} {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			blocks := 0
			endless := readerFunc(func(p []byte) (int, error) {
				if blocks++; blocks == 100 {
					cancel(cause)
				}
				return copy(p, block), nil
			})
			stream := must(Tar([]string{"x"}, TarOptions{Open: opening(endless)}))
			equal(t, "an endless shard", outcomes(stream.Epoch(ctx, 0)), []string{"error " + cause.Error()})
		}
	}
	data := tarEntries("a.txt=1", "b.txt=2")
	flipped := withBytes(gzipped(data), len(gzipped(data))-6, "xxxx")
	for i, shard := range [][]byte{data, gzipped(data), flipped} {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		at := Cursor{}
		var got []string
		for v, err := range tarOf(TarOptions{}, shard).Run(ctx, &at) {
			if got = append(got, outcomes(one(v, err))...); v == "b{txt:2}" {
				cancel(errBad)
			}
		}
		want := []string{"[a{txt:1} b{txt:2}] 1", "[a{txt:1} b{txt:2}] 1", "[a{txt:1} b{txt:2} error bad sample] 0"}[i] // the last has an error to come
		equal(t, "the outcomes, and the epoch after the last record", fmt.Sprint(got, at.Epoch), want)
	}
}

// TestTarMemory shows that what a stream holds grows neither with the records of a shard nor with the shards.
func TestTarMemory(t *testing.T) {
	record := tarEntries("a.bin=" + strings.Repeat("x", 4096))
	record = record[:len(record)-1024]
	held := func(shards, records int) (most uint64) {
		open := func(context.Context, string, int64) (io.ReadCloser, error) {
			n := 0 // records are made as they are asked for, with keys that differ
			made := readerFunc(func(p []byte) (int, error) {
				if n == records {
					return 0, io.EOF
				}
				n++
				return copy(p, withSum(withBytes(record, 0, fmt.Sprintf("%09d.bin\x00", n)), 0)), nil
			})
			return io.NopCloser(io.MultiReader(made, bytes.NewReader(make([]byte, 1024)))), nil
		}
		k := 0
		for _, err := range must(Tar(slices.Repeat([]string{"x"}, shards), TarOptions{Open: open})).Epoch(t.Context(), 0) {
			must(0, err)
			if k++; k%(shards*records/4) == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		equal(t, "records", k, shards*records)
		return most
	}
	few := held(1, 100)
	for _, size := range [][2]int{{1, 20000}, {2000, 10}} {
		if many := held(size[0], size[1]); many > few+(1<<20) {
			t.Errorf("%d shards of %d records hold %d bytes, 1 of 100 %d", size[0], size[1], many, few)
		}
	}
}

// TestTarStages shows loaders of webdataset's own tests as compositions: fields that are missing, epochs of another
// length, batches, and one shard for several ranks.
func TestTarStages(t *testing.T) {
	var entries []string
	for i := range 47 {
		entries = append(entries, fmt.Sprintf("%02d.cls=%d", i, i), fmt.Sprintf("%02d.%s=x", i, []string{"png", "jpg"}[i%2]))
	}
	stream := must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": gzipped(tarEntries(entries...))})}))
	pngs := Map(stream, 3, func(_ context.Context, r Record) (any, error) {
		if r.Get("png") == nil {
			return nil, errors.New("no png")
		}
		return Decode("cls", r.Get("cls"))
	})
	got := slices.DeleteFunc(outcomes(pngs.Epoch(t.Context(), 0)), isError)
	equal(t, "with a png", got, "[0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38 40 42 44 46]")
	count := func(s Stream[Record]) int { return len(collect(t, s.Epoch(t.Context(), 0))) }
	equal(t, "lengths", []int{count(stream.Repeat(2)), count(stream.Repeat(0).Take(193)), count(stream.Take(10))}, []int{94, 193, 10})
	equal(t, "batches of 3", len(collect(t, Batch(stream, 3, List[Record]).Epoch(t.Context(), 0))), 16)
	equal(t, "ranks", count(stream.Shard(Shard{0, 3}))+count(stream.Shard(Shard{1, 3}))+count(stream.Shard(Shard{2, 3})), 47)
}

// compareReaders checks that archive/tar and this package's reader agree on every entry of an archive, and that this
// one reports every error of archive/tar. It may report more: archives that are truncated between two entries, and data
// after the end marker. It may report an error one entry later, when it reads on.
func compareReaders(t testing.TB, data []byte, maxFile int64) {
	t.Helper()
	theirs := tar.NewReader(bytes.NewReader(data))
	ours := &tarReader{in: bufio.NewReaderSize(bytes.NewReader(data), 1<<10), max: maxFile}
	var late error // of archive/tar, about the entry before
	for n := 0; ; n++ {
		h, want := theirs.Next()
		want = cmp.Or(late, want)
		got := ours.entry()
		if got == io.EOF {
			got = ours.drain()
		}
		says := func(part string) bool { return got != nil && strings.Contains(got.Error(), part) }
		switch {
		case got == io.EOF && want == io.EOF || got != nil && got != io.EOF && want != nil && want != io.EOF:
			return
		case says("end marker") || says("is empty") || says("unexpected EOF") || says("its type is"):
			return
		case want == nil && h.Size > maxFile && says("MaxFile"): // a sparse file, which would have to be read
			return
		case got != nil || want != nil:
			t.Fatalf("entry %d: %v, archive/tar has %v", n, got, want)
		}
		late = compareEntries(t, theirs, h, ours)
	}
}

// compareEntries checks that two readers agree on one entry. It returns an error of archive/tar about its data.
func compareEntries(t testing.TB, theirs *tar.Reader, h *tar.Header, ours *tarReader) error {
	t.Helper()
	at := ours.at
	kind := byte(tar.TypeReg)
	if h.Typeflag == tar.TypeLink {
		kind = h.Typeflag
	} else if strings.ContainsRune("23456gDNV", rune(h.Typeflag)) {
		kind = 0
	}
	if at.kind != kind || kind != 0 && at.name != h.Name || kind == tar.TypeLink && at.link != h.Linkname || kind == tar.TypeReg && at.size != h.Size {
		t.Fatalf("entry %.200q of kind %d, link to %q, %d bytes; archive/tar has %.200q", at.name, at.kind, at.link, at.size, fmt.Sprint(*h))
	}
	if kind != tar.TypeReg || h.Size > ours.max {
		return nil
	}
	want, wantErr := io.ReadAll(theirs)
	got, err := ours.content()
	if wantErr == nil && err != nil || err == nil && !bytes.HasPrefix(want, got) || wantErr == nil && len(got) != len(want) {
		t.Fatalf("entry %q has %d bytes and %v, archive/tar has %d and %v", at.name, len(got), err, len(want), wantErr)
	}
	return wantErr
}

// archives returns all test archives: those of testdata/tar and, where there is one, of the Go installation.
func archives(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Log("no Go installation: ", err)
	}
	for prefix, dir := range map[string]string{"": "testdata/tar", "go-": filepath.Join(strings.TrimSpace(string(goroot)), "src/archive/tar/testdata")} {
		names, _ := filepath.Glob(filepath.Join(dir, "*.tar*"))
		if len(names) == 0 {
			t.Logf("there are no archives in %s", dir)
		}
		for _, name := range names {
			data := must(os.ReadFile(name))
			if base, ok := strings.CutSuffix(name, ".base64"); ok {
				name, data = base, []byte(unBase64(string(data)))
			}
			all[prefix+filepath.Base(name)] = data
		}
	}
	return all
}

// unBase64 decodes base64.
func unBase64(text string) string { return string(must(base64.StdEncoding.DecodeString(text))) }

// decompressed returns an archive without its compression, read by other means than the package's.
func decompressed(data []byte) []byte {
	switch {
	case bytes.HasPrefix(data, []byte("\x1f\x8b")):
		return must(io.ReadAll(must(gzip.NewReader(bytes.NewReader(data)))))
	case bytes.HasPrefix(data, []byte("BZh")):
		return must(io.ReadAll(bzip2.NewReader(bytes.NewReader(data))))
	}
	return data
}

// TestTarArchives reads every archive in three ways: with archive/tar, with Tar and with OpenTar. All agree.
func TestTarArchives(t *testing.T) {
	all := archives(t)
	if len(all) < 23 {
		t.Fatalf("only %d archives", len(all))
	}
	for name, data := range all {
		t.Run(name, func(t *testing.T) {
			plain := decompressed(data)
			compareReaders(t, plain, 1<<24)
			stream := must(Tar([]string{name}, TarOptions{MaxFile: 1 << 24, Open: inMemory(map[string][]byte{name: data})}))
			got := checkStream(t, briefly(stream), 0)
			again := indexed(t, onDisk(t, "x.tar", plain))
			if !slices.ContainsFunc(got, isError) {
				equal(t, "indexed", again, got)
			} else if !slices.ContainsFunc(again, isError) && !strings.Contains(fmt.Sprint(got), "hard link") {
				t.Errorf("Tar yields %q, OpenTar %q", got, again)
			}
		})
	}
}

// gnuArchives returns the records of the archives of testdata/tar, in every format that GNU tar writes.
func gnuArchives() map[string][]string {
	second := brief(Record{Key: "b", Files: []File{{"cls", []byte("2")}, {"txt", []byte(strings.Repeat("second\n", 100))}}})
	base := []string{"a{cls:1 txt:first\n}", second, "c{cls:3 txt:}"}
	with := func(record string) []string { return slices.Insert(slices.Clone(base), 2, record) }
	long := ""
	for i := range 7 {
		long += fmt.Sprintf("bb-folder-number-000%d/", i+1)
	}
	sparse := func(key, class string, size int, pieces map[int]string) string {
		data := make([]byte, size)
		for at, piece := range pieces {
			copy(data[at:], piece)
		}
		return brief(Record{Key: key, Files: []File{{"bin", data}, {"cls", []byte(class)}}})
	}
	pieces := map[int]string{}
	for i := range 30 {
		pieces[(i+1)*10000] = fmt.Sprintf("piece %02d", i+1)
	}
	holes := []string{base[0],
		sparse("s", "8", 100000, map[int]string{5115: "one piece", 70000: "another piece"}),
		"t{cls:9 txt:after the holes\n}", sparse("u", "10", 300008, pieces)}
	links := []string{base[0], "b{cls:2 txt:first\n}", "c{cls:3}", "d/x{cls:7 txt:x\n}"}
	utf8 := []string{base[0], "größe/日本{cls:6 txt:größe\n}"}
	return map[string][]string{
		"v7": base, "oldgnu": base, "gnu": base, "ustar": base, "posix": base, "posix-global": base,
		"gzip": base, "bzip2": base, "members": base, "dumpdir": {"dump/" + base[0], "dump/" + base[1], "dump/" + base[2]},
		"gnu-long": with(long + "long-name{cls:4 txt:long\n}"), "oldgnu-long": with(long + "long-name{cls:4 txt:long\n}"),
		"ustar-prefix": with(long + "long-name{cls:4 txt:long\n}"), "posix-long": with(long + long + "long-name{cls:5 txt:longer\n}"),
		"gnu-utf8": utf8, "posix-utf8": utf8,
		"gnu-sparse": holes, "posix-sparse-0.0": holes, "posix-sparse-0.1": holes, "posix-sparse-1.0": holes,
		"gnu-links": links, "posix-links": links,
	}
}

// TestTarGNU shows that the archives of GNU tar yield what was put in, as a stream, by index, and with the index in a
// file. Hard links are errors in a stream, and sparse files in an index.
func TestTarGNU(t *testing.T) {
	for format, want := range gnuArchives() {
		name := onDisk(t, format+".tar", archives(t)[format+".tar"])
		got := outcomes(briefly(must(Tar([]string{name}, TarOptions{}))).Epoch(t.Context(), 0))
		if strings.Contains(format, "links") {
			saysAll(t, errors.New(got[1]), name, `entry "b.txt"`, `it is a hard link to "a.txt"`)
			got[1] = want[1]
		}
		equal(t, name, got, want)
		again := indexed(t, name)
		if format == "gzip" || format == "bzip2" || format == "members" {
			saysAll(t, errors.New(again[0]), name, "it is compressed", "use Tar")
			continue
		}
		equal(t, name+" indexed", again, want)
		switch err := writeIndex(name); {
		case strings.Contains(format, "links"):
			saysAll(t, err, `"b.txt"`)
		case strings.Contains(format, "sparse"):
			saysAll(t, err, `"s.bin"`)
		case err != nil:
			t.Error(err)
		default:
			equal(t, name+" with an index", indexed(t, name), want)
		}
	}
	for _, format := range []string{"xz", "zstd"} {
		name := "testdata/tar/" + format + ".tar"
		saysAll(t, errors.New(tarOutcomes(t, nil, name)[0]), name, "compressed with "+format, "gzip")
		saysAll(t, errors.New(indexed(t, name)[0]), name, "compressed with "+format)
	}
}

// TestParseHeader shows which headers the fast path takes, and which it leaves to archive/tar.
func TestParseHeader(t *testing.T) {
	all := archives(t)
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix-global", "ustar-prefix"} {
		data := all[format+".tar"]
		if format == "posix-global" {
			data = data[1024:]
		}
		name, size, ok := parseHeader(data[:512])
		equal(t, format, fmt.Sprint(name, size, ok), "a.cls1 true")
	}
	header := all["ustar.tar"][:512]
	for at, bytes := range map[int]string{0: "a", 100: "0000644x", 108: "x", 116: "9", 124: "\x80", 136: "-1", 156: "5", 329: "x", 337: "x", 508: "tar\x00"} {
		changed := withSum(withBytes(header, at, bytes), 0)
		if _, _, ok := parseHeader(changed); ok != (at == 0) {
			t.Errorf("with %q at %d: %t", bytes, at, ok)
		}
		changed[148] ^= 1
		if _, _, ok := parseHeader(changed); ok {
			t.Errorf("with %q at %d and another sum", bytes, at)
		}
	}
}

// FuzzTar reads arbitrary bytes as a shard; -fuzzminimizetime 10x makes it faster. There is always an end, nothing
// panics, no more memory is allocated than MaxFile for a file, archive/tar agrees, and a resume after every record
// yields the rest.
func FuzzTar(f *testing.F) {
	for _, data := range archives(f) {
		if len(data) < 40<<10 {
			f.Add(data)
		}
	}
	f.Add(tarEntries("a.txt=1", "b.txt>a.txt", "b.cls=2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const maxFile = 1 << 16
		if !bytes.HasPrefix(data, []byte("\x1f\x8b")) && !bytes.HasPrefix(data, []byte("BZh")) {
			compareReaders(t, data, maxFile)
		}
		stream := briefly(must(Tar([]string{"x"}, TarOptions{MaxFile: maxFile, Open: func(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
			return &countingFile{Reader: bytes.NewReader(data[min(int(offset), len(data)):])}, nil
		}})))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		want, cursors := walk(t, stream)
		runtime.ReadMemStats(&after)
		if limit := uint64(16<<20 + (len(data)/tarBlock+1)*2*maxFile); after.TotalAlloc-before.TotalAlloc > limit {
			t.Fatalf("%d bytes of memory for %d of data", after.TotalAlloc-before.TotalAlloc, len(data))
		}
		for k, c := range cursors {
			if k < 8 || k > len(cursors)-8 {
				equal(t, "resumed", outcomes(stream.Run(t.Context(), &c)), want[k+1:])
			}
		}
	})
}

// A tarServer is a web server with one object, and a history of what it was asked.
type tarServer struct {
	*httptest.Server
	web   web
	mu    sync.Mutex
	asked []string        // Range and If-Range of each request; guarded by mu
	waits []time.Duration // between them
}

// An answer writes the answer to the n-th request, from 1 on.
type answer func(n int, w http.ResponseWriter, r *http.Request)

// serveTar starts a server. Its answers depend on the answer function only.
func serveTar(t *testing.T, answer answer) *tarServer {
	s := &tarServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if encoding := r.Header.Get("Accept-Encoding"); !r.Close || encoding != "identity" {
			t.Errorf("asked to keep the connection, %t, and for the encoding %q", !r.Close, encoding)
		}
		s.mu.Lock()
		s.asked = append(s.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
		n := len(s.asked)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	s.web = web{client: s.Client(), attempts: 6, stall: time.Minute, wait: func(_ context.Context, d time.Duration) error {
		s.waits = append(s.waits, d)
		return nil
	}}
	return s
}

// requests returns what the server was asked.
func (s *tarServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// records are the outcomes of the shard that the server has, and of a sound one after it.
func (s *tarServer) records(t *testing.T, path string) []string {
	return tarOutcomes(t, func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		if name == "after" {
			return io.NopCloser(bytes.NewReader(tarEntries("z.txt=after"))), nil
		}
		return s.web.connect(ctx, name, offset)
	}, s.URL+path, "after")
}

// sends is the answer of a good server that has data with an ETag. Its connection breaks after limit bytes, unless
// limit is negative.
func sends(data []byte, tag string, limit int) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", tag)
		if limit >= 0 {
			w = &breaking{w, limit}
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

// A breaking answer ends with the connection after left bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left < len(p) {
		b.ResponseWriter.Write(p[:b.left])
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// status is an answer without an object. Its headers are key, value, key, value.
func status(code int, headers ...string) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		for kv := range slices.Chunk(headers, 2) {
			w.Header().Set(kv[0], kv[1])
		}
		w.WriteHeader(code)
	}
}

// ignoring is an answer of a server that does not know a header.
func ignoring(header string, answer answer) answer {
	return func(n int, w http.ResponseWriter, r *http.Request) {
		r.Header.Del(header)
		answer(n, w, r)
	}
}

// anew is an answer that is made for each request.
func anew(make func(n int) answer) answer {
	return func(n int, w http.ResponseWriter, r *http.Request) { make(n)(n, w, r) }
}

// first is an answer to the first request, and another to all that follow.
func first(one, others answer) answer {
	return anew(func(n int) answer { return []answer{one, others}[min(n-1, 1)] })
}

// abort is an answer that ends after its headers, which promise length bytes.
func abort(length int, tag string) answer {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(length))
		w.Header().Set("ETag", tag)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// A webCase is a server that behaves in its own way: how many requests it gets for its shard, and what the error says,
// unless there is none.
type webCase struct {
	name   string
	answer answer
	asked  int
	says   string
}

// webCases returns servers that behave badly. Each has a shard with data.
func webCases(t *testing.T, data []byte) []webCase {
	parts := func(size int) int { return (len(data) + size - 1) / size }
	tagged := func(n int) string { return fmt.Sprintf(`"%d"`, n) }
	const tag = `"one"`
	return []webCase{
		{"good", sends(data, tag, -1), 1, ""},
		{"breaks all the time", sends(data, tag, 16000), parts(16000), ""},
		{"breaks, and has no ranges", ignoring("Range", anew(func(n int) answer { return sends(data, tag, 30000*n) })), parts(30000), ""},
		{"breaks without a length", ignoring("Range", func(n int, w http.ResponseWriter, r *http.Request) {
			w = &breaking{w, 60000 * n}
			for part := range slices.Chunk(data, 1000) {
				w.Write(part)
			}
		}), parts(60000), ""},
		{"breaks, and never gets further", ignoring("Range", sends(data, tag, 30000)), 6, "attempt 6: unexpected EOF"},
		{"breaks before the first byte", abort(len(data), tag), 6, "attempt 6: unexpected EOF"},
		{"not yet", anew(func(n int) answer {
			if codes := []int{503, 408, 429, 500, 504}; n <= len(codes) {
				return status(codes[n-1], "Retry-After", "100")
			}
			return sends(data, tag, -1)
		}), 6, ""},
		{"never", status(503), 6, "attempt 6: 503 Service Unavailable"},
		{"no connection", func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 6, "attempt 6: EOF"},
		{"not found", status(404), 1, "404 Not Found"},
		{"forbidden", status(403), 1, "403 Forbidden"},
		{"forbidden later", first(sends(data, tag, 30000), status(403)), 2, "403 Forbidden"},
		{"nothing", status(204), 1, "204 No Content"},
		{"changes its tag", anew(func(n int) answer { return sends(data, tagged(n), 30000) }), 2, "has changed"},
		{"changes its tag, and does not look", ignoring("If-Range", anew(func(n int) answer { return sends(data, tagged(n), 30000) })), 2, "has changed"},
		{"changes its date", func(n int, w http.ResponseWriter, r *http.Request) {
			http.ServeContent(&breaking{w, 30000}, r, "", time.Unix(int64(n), 0), bytes.NewReader(data))
		}, 2, "has changed"},
		{"changes its length", anew(func(n int) answer { return sends(data[:len(data)-n], "", 30000) }), 2, "has changed"},
		{"changes its weak tag", anew(func(n int) answer { return sends(data, "W/"+tagged(n), 30000) }), 2, "has changed"},
		{"changes before the first byte", anew(func(n int) answer { return abort(len(data), tagged(n)) }), 2, "has changed"},
		{"has a weak tag", func(n int, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") != "" {
				t.Error("a weak tag in If-Range")
			}
			sends(data, `W/"one"`, 40000)(n, w, r)
		}, parts(40000), ""},
		{"redirects to nowhere", status(302, "Location", "http://user:secret@host:bad/x?sig=secret"), 1, "something that is not a URL"},
		{"promises more than it has", first(func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, status(416)), 2, "416"},
		{"has a truncated shard", sends(data[:20480], tag, -1), 1, "unexpected EOF"},
		{"sends another range", first(sends(data, tag, 30000), func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Range", "bytes=5-")
			sends(data, tag, 30000)(n, w, r)
		}), 2, `answers with the range "bytes 5-`},
		{"sends short ranges", first(sends(data, tag, 30000), func(n int, w http.ResponseWriter, r *http.Request) {
			from := must(strconv.Atoi(strings.Trim(r.Header.Get("Range"), "bytes=-")))
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+29999))
			sends(data, tag, -1)(n, w, r)
		}), parts(30000), ""},
		{"compresses on the way", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			sends(gzipped(data), tag, -1)(n, w, r)
		}, 1, ""},
	}
}

// TestWeb reads a shard from servers that behave badly, each in its own way. Every record comes exactly once, or the
// shard ends in an error.
func TestWeb(t *testing.T) {
	var entries, all []string
	for i := range 100 {
		bin := strings.Repeat("x", 7*i)
		entries = append(entries, fmt.Sprintf("%d.txt=%d", i, i), fmt.Sprintf("%d.bin=%s", i, bin))
		all = append(all, brief(Record{Key: strconv.Itoa(i), Files: []File{{"txt", []byte(strconv.Itoa(i))}, {"bin", []byte(bin)}}}))
	}
	all = append(all, "z{txt:after}")
	for _, c := range webCases(t, tarEntries(entries...)) { // of about 150 kB
		t.Run(c.name, func(t *testing.T) {
			s := serveTar(t, c.answer)
			got := s.records(t, "/x.tar")
			equal(t, "requests", len(s.requests()), c.asked)
			if c.says != "" {
				n := max(0, len(got)-2)
				equal(t, "records before the error", got[:n], all[:n])
				if saysAll(t, errors.New(got[n]), "/x.tar", c.says); strings.Contains(got[n], "secret") {
					t.Error(got[n])
				}
				equal(t, "the next shard", got[n+1:], all[100:])
				return
			}
			equal(t, "records", got, all)
		})
	}
}

// TestWebRequests shows what is asked for, and how long the waits are: they double up to 30 seconds, start anew after a
// byte, and are as long as Retry-After says.
func TestWebRequests(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000))
	good := sends(data, `"tag"`, -1)
	waited := func(s *tarServer, want ...time.Duration) {
		t.Helper()
		equal(t, "waits", len(s.waits), len(want))
		for i, d := range s.waits {
			if d > want[i] || d < want[i]/2 {
				t.Errorf("wait %d is %v, want %v or up to a half less", i, d, want[i])
			}
		}
	}
	busy := status(429, "Retry-After", "100")
	s := serveTar(t, anew(func(n int) answer {
		if n == 2 {
			return busy
		}
		return sends(data, `"tag"`, 4000)
	}))
	equal(t, "records", len(s.records(t, "")), 3)
	equal(t, "requests", s.requests(), []string{"", `bytes=4000- "tag"`, `bytes=4000- "tag"`, `bytes=8000- "tag"`, `bytes=12000- "tag"`})
	waited(s, time.Second, 100*time.Second, time.Second, time.Second)
	equal(t, "the wait of Retry-After", s.waits[1], 100*time.Second)

	s = serveTar(t, status(500))
	s.web.attempts = 10
	s.records(t, "")
	const sec = time.Second
	waited(s, 1*sec, 2*sec, 4*sec, 8*sec, 16*sec, 30*sec, 30*sec, 30*sec, 30*sec)

	// After Close nothing is asked for.
	s = serveTar(t, sends(data, `"tag"`, 6000))
	r := must(s.web.connect(t.Context(), s.URL, 0))
	r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, os.ErrClosed) || len(s.requests()) != 1 {
		t.Errorf("after Close: %v, %d requests", err, len(s.requests()))
	}

	// A resume asks for what follows the cursor, but for all of a compressed shard.
	for _, c := range []struct {
		answer answer
		asked  []string
	}{{good, []string{"", "bytes=5632-"}}, {sends(gzipped(data), `"tag"`, -1), []string{"", ""}}} {
		s = serveTar(t, c.answer)
		stream := briefly(must(Tar([]string{s.URL}, TarOptions{Open: s.web.connect})))
		var at Cursor
		for range stream.Run(t.Context(), &at) {
			break
		}
		want := []string{brief(Record{Key: "b", Files: []File{{"txt", []byte(strings.Repeat("y", 5000))}}})}
		equal(t, "the rest", outcomes(stream.Run(t.Context(), ptr(throughJSON(t, at)))), want)
		equal(t, "requests", s.requests(), c.asked)
	}

	// A context that ends while the server is waited for ends the stream.
	ctx, cancel := context.WithCancelCause(t.Context())
	s = serveTar(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:6000])
		w.(http.Flusher).Flush()
		cancel(errBad)
		<-r.Context().Done()
	})
	stream := must(Tar([]string{s.URL, "y"}, TarOptions{Open: s.web.connect}))
	got := outcomes(stream.Epoch(ctx, 0))
	equal(t, "stopped", got[len(got)-1], "error bad sample")
}

// TestRetryAfter shows what Retry-After may say: seconds or a date, at most two minutes.
func TestRetryAfter(t *testing.T) {
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		header   string
		min, max time.Duration
	}{
		{"", 0, 0}, {"soon", 0, 0}, {"-5", 0, 0}, {"0", 0, 0}, {"7", 7 * time.Second, 7 * time.Second},
		{"119", 119 * time.Second, 119 * time.Second}, {"121", 2 * time.Minute, 2 * time.Minute},
		{"99999999999999999999", 2 * time.Minute, 2 * time.Minute}, {in(-time.Hour), 0, 0},
		{in(100 * time.Second), 90 * time.Second, 101 * time.Second}, {in(time.Hour), 2 * time.Minute, 2 * time.Minute},
	} {
		if d := retryAfter(c.header); d < c.min || d > c.max {
			t.Errorf("%q: %v, want %v to %v", c.header, d, c.min, c.max)
		}
	}
}

// TestWebAccept shows which answers are taken for the rest of an object, and what is learned of its size.
func TestWebAccept(t *testing.T) {
	for _, c := range []struct {
		pos, size    int64 // of the object, before
		code         int
		length       int64
		contentRange string
		says         string // empty: the answer is accepted
		behind       int64
		after        int64 // the size, then
	}{
		{0, -1, 200, 100, "", "", 0, 100},
		{0, -1, 200, -1, "", "", 0, -1},
		{30, 100, 200, 100, "", "", 30, 100},
		{30, -1, 200, 100, "", "", 30, 100},
		{30, 100, 200, -1, "", "", 30, 100},
		{30, 100, 200, 101, "", "has changed", 0, 100},
		{30, 0, 200, 101, "", "has changed", 0, 0},
		{30, 100, 200, 0, "", "has changed", 0, 100},
		{30, 100, 206, 70, "bytes 30-99/100", "", 0, 100},
		{30, -1, 206, 70, "bytes 30-99/100", "", 0, 100},
		{30, 100, 206, 70, "bytes 30-99/*", "", 0, 100},
		{30, -1, 206, 70, "bytes 30-99/*", "", 0, -1},
		{30, 100, 206, 70, "bytes 30-99/170", "has changed", 0, 100},
		{30, 100, 206, 70, "bytes 29-99/100", `the range "bytes 29-99/100"`, 0, 100},
		{30, 100, 206, 70, "bytes 31-99/100", `the range "bytes 31-99/100"`, 0, 100},
		{30, 100, 206, 70, "", `the range ""`, 0, 100},
		{0, -1, 206, 100, "bytes 0-99/100", "206", 0, -1},
		{30, 100, 404, 0, "", "404", 0, 100},
	} {
		o := &webObject{pos: c.pos, size: c.size}
		header := http.Header{"Content-Range": {c.contentRange}}
		after, err := o.accept(&http.Response{StatusCode: c.code, Status: strconv.Itoa(c.code), ContentLength: c.length, Header: header})
		if c.says == "" && err != nil {
			t.Errorf("%v: %v", c, err)
		} else if c.says != "" {
			saysAll(t, err, c.says)
			equal(t, "asked again", after, time.Duration(never))
		}
		equal(t, fmt.Sprintf("%v: behind and size", c), []int64{o.behind, o.size}, []int64{c.behind, c.after})
	}
}

// TestWebStall shows, in fake time and over a network in memory, that a server that stops in the middle is asked again
// after a minute, and that a caller that takes its time is no such server.
func TestWebStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt=2")
		slow := tarEntries("a.bin="+strings.Repeat("x", 3*tarBuffer), "b.bin="+strings.Repeat("x", 3*tarBuffer))
		var mu sync.Mutex
		var asked []string // guarded by mu
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				r, err := http.ReadRequest(bufio.NewReader(server))
				if err != nil {
					return
				}
				mu.Lock()
				asked = append(asked, r.URL.Path+" "+r.Header.Get("Range"))
				n := len(asked)
				mu.Unlock()
				switch {
				case r.URL.Path == "/slow":
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(slow), slow)
				case n == 1: // stops after some bytes
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(data), data[:3000])
				case n == 3 && r.URL.Path == "/x": // n == 2 stops before the first byte
					fmt.Fprintf(server, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3000-%d/%d\r\nContent-Length: %d\r\n\r\n%s", len(data)-1, len(data), len(data)-3000, data[3000:])
				}
				io.Copy(io.Discard, server) // until the client goes
			}()
			return client, nil
		}}
		defer transport.CloseIdleConnections()
		w := web{client: &http.Client{Transport: transport}, attempts: 6, stall: time.Minute, wait: pause}
		read := func(path string, pause time.Duration) (got []string, took time.Duration) {
			start := time.Now()
			for v, err := range briefly(must(Tar([]string{"http://x" + path}, TarOptions{Open: w.connect}))).Epoch(t.Context(), 0) {
				got = append(got, outcomes(one(v, err))...)
				time.Sleep(pause)
			}
			mu.Lock()
			defer mu.Unlock()
			return got, time.Since(start)
		}
		got, took := read("/x", 0)
		equal(t, "records", len(got), 2)
		equal(t, "requests", asked, "[/x  /x bytes=3000- /x bytes=3000-]")
		if took < 2*time.Minute || took > 2*time.Minute+3*time.Second {
			t.Errorf("it took %v, want two stalls of a minute and two waits, of a second and of two", took)
		}
		got, _ = read("/slow", time.Hour)
		equal(t, "records", len(got), 2)
		equal(t, "requests", len(asked), 4)
		got, _ = read("/never", 0)
		saysAll(t, errors.New(got[0]), "attempt 6: the server has stalled")
	})
}

// TestSecrets looks for what a URL should not tell in every error there is.
func TestSecrets(t *testing.T) {
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.URL.RawQuery != "sig=secret" {
			t.Errorf("asked as %q with %q and %q", user, password, r.URL.RawQuery)
		}
		w.WriteHeader(404)
	})
	s.web.attempts = 1
	for _, name := range []string{
		strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/x.tar?sig=secret#secret",
		"http://user:secret@127.0.0.1:1/x.tar?sig=secret", "http://user:secret@127.0.0.1:secret/x.tar", "http://user:sec%ret@x/",
	} {
		got := tarOutcomes(t, s.web.connect, name)
		if len(got) != 1 || !isError(got[0]) || strings.Contains(got[0], "secret") || strings.Contains(got[0], "sec%") {
			t.Errorf("%s: %q", name, got)
		}
	}
	got := tarOutcomes(t, nil, "s3://user:secret@bucket/x.tar?sig=secret")[0]
	if saysAll(t, errors.New(got), "s3://bucket/x.tar", "http and https", "Opener"); strings.Contains(got, "secret") {
		t.Error(got)
	}
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		_, err := OpenTar(scheme + "://user:secret@host/x.tar?sig=secret")
		if saysAll(t, err, strings.ToLower(scheme)+"://host/x.tar", "Tar reads URLs"); strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

// TestTarDataset shows records by their index, also from several goroutines at once, and the errors of the data set.
func TestTarDataset(t *testing.T) {
	one := onDisk(t, "one.tar", tarEntries("d/a.txt=1", "d/a.CLS=2", "README=3", "b.bin="+strings.Repeat("x", 3000), "b.txt=4"))
	two := onDisk(t, "two.tar", tarEntries("c.txt=5", "c.bin="+strings.Repeat("y", 1<<20), "z="+strings.Repeat("z", 5<<20), "c.cls=6"))
	data := must(OpenTar(one, two, one))
	defer data.Close()
	equal(t, "Len", data.Len(), 5)
	want := indexed(t, one)
	want = slices.Concat(want, indexed(t, two), want)
	equal(t, "records", want[0], "d/a{txt:1 cls:2}")

	loader := newLoader[Record](t, data, Options{BatchSize: 2, Workers: 4})
	for range 5 {
		var got []string
		for _, batch := range collect(t, loader.Epoch(t.Context(), 0)) {
			for _, r := range batch {
				got = append(got, brief(r))
				if f := r.Files[0]; cap(f.Data) != len(f.Data) {
					t.Errorf("field %s of %s may grow into the next", f.Name, r.Key)
				}
			}
		}
		equal(t, "loaded", got, want)
	}
	for _, i := range []int{-1, 5} {
		_, err := data.Get(t.Context(), i)
		saysAll(t, err, fmt.Sprintf("index %d", i), "5 samples")
	}
	equal(t, "the shard of record 3", must(data.Get(t.Context(), 3)).Shard, one)
	data.Close()
	_, err := data.Get(t.Context(), 0)
	if e := (*TarError)(nil); !errors.As(err, &e) || !errors.Is(err, os.ErrClosed) || e.Shard != one || e.Entry != "d/a.txt" {
		t.Errorf("after Close: %v", err)
	}

	_, err = OpenTar()
	saysAll(t, err, "OpenTar", "no shards")
	_, err = OpenTar(one, filepath.Join(t.TempDir(), "missing.tar"))
	saysAll(t, err, "dataloader: OpenTar: shard", "missing.tar", "no such file")
	_, err = OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))
	saysAll(t, err, "x.tar", "compressed", "use Tar")
}

// The shard of the tests of the index, and its index.
var indexedShard = []string{"d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3"}

const indexText = "v1.2 2\ntxt 1024 5 d/a.txt Seg.PNG 2048 1 d/a.Seg.PNG\ntxt 3072 0 b.txt cls 3584 1 b.cls\n"

// TestTarIndex shows which index is written, byte for byte, and that indexes written by others are read.
func TestTarIndex(t *testing.T) {
	name := onDisk(t, "x.tar", tarEntries(indexedShard...))
	want := indexed(t, name)
	if err := writeIndex(name); err != nil {
		t.Fatal(err)
	}
	equal(t, "the index", string(must(os.ReadFile(strings.TrimSuffix(name, "tar")+"idx"))), indexText)
	equal(t, "files beside the shard", len(must(os.ReadDir(filepath.Dir(name)))), 2)
	equal(t, "with the index", indexed(t, name), want)

	three := []string{"a.txt=1", "b.txt=2", "c.txt=3"}
	for _, c := range []struct {
		name, text string
		shard      []string
		want       string // empty: the index is stale
	}{
		{"other line ends", strings.ReplaceAll(indexText, "\n", "\r\n"), indexedShard, fmt.Sprint(want)},
		{"what is no record", "v1.2 4\nx 512 1 __m__\ntxt 1536 1 a.txt\nh 2560 1 .h\ncls 3584 1 a.cls\n", []string{"__m__=x", "a.txt=1", ".h=2", "a.cls=3"}, "[a{txt:1 cls:3}]"},
		{"one record in two", "v1.2 2\ntxt 1024 1 a.txt\ncls 3072 1 a.cls\n", []string{"d/", "a.txt=1", "README=2", "a.cls=3", "b/"}, "[a{txt:1 cls:3}]"},
		{"no records", "v1.2 0\n", three, "[a{txt:1} b{txt:2} c{txt:3}]"},
		{"a record lacks in the middle", "v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 c.txt\n", three, ""},
		{"a record lacks in front", "v1.2 2\ntxt 1536 1 b.txt\ntxt 2560 1 c.txt\n", three, ""},
		{"a hard link lacks", "v1.2 2\ntxt 512 1 a.txt\ntxt 2048 1 b.txt\n", []string{"a.txt=1", "a.cls>a.txt", "b.txt=2"}, ""},
		{"a hard link lacks at the end", "v1.2 2\ntxt 512 1 a.txt\ntxt 1536 1 b.txt\n", []string{"a.txt=1", "b.txt=2", "b.cls>a.txt"}, ""},
		{"of headers that are not there", "v1.2 1\ntxt 2048 1 b.txt\n", []string{"README=1", "a="}, ""},
	} {
		got := indexed(t, onDisk(t, "x.tar", tarEntries(c.shard...), c.text))
		if c.want == "" {
			equal(t, c.name, len(got), 1)
			saysAll(t, errors.New(got[0]), "dataloader: OpenTar: shard", "the shard is not the one that was indexed", "x.idx")
		} else {
			equal(t, c.name, got, c.want)
		}
	}
}

// TestTarIndexText shows what is wrong with an index, in errors that name the line.
func TestTarIndexText(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"", `it begins with ""`}, {"v1.1 2\n", `"v1.1 2", must begin with "v1.2"`}, {"\x00\x00\x02\x00", "it begins with"}, {"v1.2 x\n", "v1.2 x"}, {"v1.2 2", "0 lines of records, its first line says 2"},
		{"v1.2 3\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 3"},
		{"v1.2 0\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 0"},
		{"v1.2 1\ntxt 1024 5\n", "line 2 has 3 words"}, {"v1.2 1\ntxt 1024 5 d/a b.txt\n", "line 2 has 5 words"}, {"v1.2 2\n\n\n", "line 2 has 0 words"},
		{"v1.2 1\ntxt 1000 5 d/a.txt\n", `line 2: "d/a.txt" has the offset 1000`}, {"v1.2 1\ntxt 0 5 d/a.txt\n", "the offset 0"}, {"v1.2 1\ntxt -512 5 d/a.txt\n", "the offset -512"},
		{"v1.2 1\ntxt 1024 -5 d/a.txt\n", "the size -5"}, {"v1.2 1\ntxt 1024 500000 d/a.txt\n", "the size 500000"}, {"v1.2 1\ntxt 1024 9223372036854775807 d/a.txt\n", "9223372036854775807"},
		{"v1.2 1\ntxt 99999999999999999999 5 d/a.txt\n", "99999999999999999999"}, {"v1.2 1\ntxt 1024 x d/a.txt\n", "the size x"},
		{"v1.2 1\ntxt 1024 5 d/a.txt txt 2048 1 d/a.TXT\n", `line 2: record "d/a" has another field "txt"`},
		{"v1.2 2\ntxt 1024 5 d/a.txt\ncls 1024 5 b.cls\n", `line 3: "b.cls" has the offset 1024`},
		{"v1.2 2\ntxt 1024 5 d/a.txt\ncls 1536 1 b.cls\n", `line 3: "b.cls" has the offset 1536 and the size 1, which cannot be in a shard of 6144 bytes, after byte 1536`},
	} {
		_, err := OpenTar(onDisk(t, "x.tar", tarEntries(indexedShard...), c.text))
		saysAll(t, err, "x.idx", c.says, "without the index the shard itself is read")
	}
	name := onDisk(t, "x.tar", tarEntries(indexedShard...))
	must(0, os.Mkdir(strings.TrimSuffix(name, "tar")+"idx", 0o777))
	_, err := OpenTar(name)
	saysAll(t, err, "x.idx", "is a directory")
}

// TestTarIndexStale shows that an index of another shard is noticed when the shard is opened, or at the first read of a
// record about which the index is wrong; also if the shard changes while it is open.
func TestTarIndexStale(t *testing.T) {
	const says = "the shard is not the one that was indexed"
	shard := tarEntries(indexedShard...)
	with := func(entries ...string) []byte { return tarEntries(entries...) }
	for _, c := range []struct {
		name  string
		shard []byte
		open  bool // noticed when it is opened
		bad   int  // or by so many reads
	}{
		{"the same", shard, false, 0},
		{"another record", with("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3", "c.txt=4"), true, 0},
		{"truncated", shard[:3584+512], true, 0},
		{"other names", with("d/", "d/A.txt=first", "d/A.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 2},
		{"another size", with("d/", "d/a.txt=other!", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 1},
		{"another order", with("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.cls=", "b.txt=2"), false, 2},
		{"a link", with("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls>b.txt", "c="), false, 1},
		{"folders elsewhere", with("d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "c/", "c=", "c=", "c="), true, 0},
	} {
		got := indexed(t, onDisk(t, "x.tar", c.shard, indexText))
		bad := 0
		for _, g := range got {
			if isError(g) {
				bad++
				if saysAll(t, errors.New(g), "x.tar"); c.name != "truncated" {
					saysAll(t, errors.New(g), says, "x.idx")
				}
			}
		}
		if c.open != (len(got) == 1) || !c.open && bad != c.bad {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	// Names that do not fit into one header, in records of the same size.
	for _, prefix := range []string{"ä", strings.Repeat("x", 120)} {
		name := onDisk(t, "x.tar", tarEntries(prefix+"1.txt=1", prefix+"2.txt=2", prefix+"3.txt=3"))
		must(0, writeIndex(name))
		equal(t, "with an index", indexed(t, name), []string{prefix + "1{txt:1}", prefix + "2{txt:2}", prefix + "3{txt:3}"})
		must(0, os.WriteFile(name, tarEntries(prefix+"3.txt=3", prefix+"1.txt=1", prefix+"2.txt=2"), 0o666))
		for _, got := range indexed(t, name) {
			saysAll(t, errors.New(got), says)
		}
	}
	name := onDisk(t, "x.tar", shard)
	data := must(OpenTar(name))
	defer data.Close()
	for _, change := range [][]byte{tarEntries("e/", "e/a.txt=first"), shard[:1024]} {
		must(0, os.WriteFile(name, change, 0o666))
		_, err := data.Get(t.Context(), 0)
		saysAll(t, err, says, "x.tar")
	}
}

// TestWriteIndex shows what cannot be written, and that a failed write leaves no file.
func TestWriteIndex(t *testing.T) {
	for says, entries := range map[string][]string{
		`"a b.txt"`: {"a b.txt=1"}, `"a.cls"`: {"a.txt=1", "a.cls>a.txt"}, `"a."`: {"a.=1"}, "no records": {"README=1"},
		"another field": {"a.txt=1", "a.txt=2"},
	} {
		err := writeIndex(onDisk(t, "x.tar", tarEntries(entries...)))
		saysAll(t, err, "dataloader: WriteIndex", "x.idx", says)
	}
	name := onDisk(t, "x.tar", tarEntries(indexedShard...))
	data := must(OpenTar(name))
	defer data.Close()
	must(0, os.Mkdir(strings.TrimSuffix(name, "tar")+"idx", 0o777)) // no file can take its name
	saysAll(t, data.WriteIndex(), "x.idx")
	equal(t, "files", len(must(os.ReadDir(filepath.Dir(name)))), 2)
}

// FuzzTarIndex reads arbitrary bytes as the index of a shard: it yields what is in the shard, or an error.
func FuzzTarIndex(f *testing.F) {
	f.Add("v1.2 2\ntxt 512 5 a.txt cls 1536 1 a.cls\ntxt 2560 6 b.txt\n")
	f.Add("v1.2 1\ntxt 512 5 a.txt\n")
	f.Add("v1.2 99999999999\ntxt 2560 6 b.txt txt 512 5 a.txt\n")
	f.Fuzz(func(t *testing.T, index string) {
		name := onDisk(t, "x.tar", tarEntries("a.txt=first", "a.cls=1", "b.txt=second"), index)
		for _, got := range indexed(t, name) {
			if !slices.Contains([]string{"a{txt:first cls:1}", "a{cls:1 txt:first}", "a{txt:first}", "a{cls:1}", "b{txt:second}"}, got) && !isError(got) {
				t.Fatalf("got %q", got)
			}
		}
	})
}

// TestTarWriter shows that records are read back as they were written, and that the same records make the same bytes.
func TestTarWriter(t *testing.T) {
	long := strings.Repeat("long/", 60) + "ü"
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", bytes.Repeat([]byte("x"), 1000)}, {"__key__", nil}}},
		{Key: long, Files: []File{{"txt", nil}}},
		{Key: "__m__x", Files: []File{{"json", []byte("{}")}}},
	}
	write := func(w io.Writer) {
		shard := NewTarWriter(w)
		for _, r := range records {
			must(0, shard.Write(r))
		}
		must(0, shard.Close())
		saysAll(t, shard.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter", "after close")
	}
	var shards [2]bytes.Buffer
	for i := range shards {
		write(&shards[i])
		for _, r := range records {
			slices.Reverse(r.Files)
		}
	}
	equal(t, "the same bytes", bytes.Equal(shards[0].Bytes(), shards[1].Bytes()), true)
	want := []string{"b{cls:2 txt:1}", brief(Record{Key: "./d/a", Files: []File{{"__key__", nil}, {"seg.png", bytes.Repeat([]byte("x"), 1000)}}}), long + "{txt:}", "__m__x{json:{}}"}
	equal(t, "read back", outcomes(tarOf(TarOptions{}, shards[0].Bytes(), gzipped(shards[0].Bytes())).Epoch(t.Context(), 0)), slices.Concat(want, want))
	h := must(tar.NewReader(&shards[0]).Next())
	equal(t, "a header", fmt.Sprintf("%s %o %d %q %d %s", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix(), h.Format), `b.cls 444 0 "" 0 USTAR`)
}

// TestTarWriterErrors shows which records are refused, without a byte written, and what the errors of a writer are.
func TestTarWriterErrors(t *testing.T) {
	var b bytes.Buffer
	w := NewTarWriter(&b)
	must(0, w.Write(Record{Key: "b", Files: []File{{"txt", nil}}}))
	before := b.Len()
	for _, c := range []struct{ record, says string }{ // the key, a blank, the fields
		{"c", `record "c": it has no files`},
		{"b txt", `record "b": the shard has a record with this key already`},
		{" txt", `record "": file ".txt" would be skipped`},
		{"d/ txt", `file "d/.txt" would be skipped`},
		{"c.x txt", `file "c.x.txt" would be read as field "x.txt" of record "c"`},
		{"d/.c txt", `file "d/.c.txt" would be skipped when it is read, as are hidden files`},
		{"__c__/d txt", `file "__c__/d.txt" would be skipped when it is read, as are hidden files, files without a dot, and names like __meta__`},
		{"/c txt", `record "/c": the key must be a relative path`},
		{"d/../../c txt", `record "d/../../c": the key must be a relative path without ".."`},
		{"c\x00 txt", `file "c\x00.txt" must not have a NUL`},
		{"c t\x00t", `file "c.t\x00t" must not have a NUL`},
		{"c ", `field "" must not be empty`},
		{"c txt TXT", `file "c.TXT" would be read as field "txt"`},
		{"c a/b", `file "c.a/b" would be skipped`},
		{"c txt cls txt", `record "c": field "txt" comes twice`},
	} {
		words := strings.Split(c.record, " ")
		r := Record{Key: words[0]}
		for _, field := range words[1:] {
			r.Files = append(r.Files, File{field, nil})
		}
		saysAll(t, w.Write(r), "dataloader: TarWriter: ", c.says)
	}
	equal(t, "bytes of bad records", b.Len()-before, 0)

	out, in := io.Pipe()
	go func() {
		io.CopyN(io.Discard, out, 1000)
		out.CloseWithError(errBad)
	}()
	w = NewTarWriter(in)
	var err error
	for i := 0; err == nil && i < 10; i++ {
		err = w.Write(Record{Key: strconv.Itoa(i), Files: []File{{"txt", nil}}})
	}
	saysAll(t, err, "TarWriter", `record "1"`, "bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
}

// TestTarNames reads and indexes a shard whose entries would like to be written elsewhere, and opens names that other
// libraries would execute. No file but the index is written.
func TestTarNames(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "in", "x.tar")
	must(0, os.Mkdir(filepath.Dir(name), 0o777))
	must(0, os.WriteFile(name, tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd", "d/../../evil.idx=3"), 0o666))
	want := "[../../evil{txt:1} /etc/evil{txt:2} d/../../evil{idx:3}]"
	equal(t, "streamed", tarOutcomes(t, nil, name), want)
	must(0, writeIndex(name))
	equal(t, "indexed", indexed(t, name), want)
	for _, command := range []string{"pipe:touch " + dir + "/evil", "|touch " + dir + "/evil", "-"} {
		if _, err := OpenShard(t.Context(), command, 0); err == nil {
			t.Errorf("%s was opened", command)
		}
	}
	var found []string
	must(0, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			found = append(found, filepath.Base(path))
		}
		return err
	}))
	equal(t, "files", found, "[x.idx x.tar]")
}

// TestExpand shows what patterns stand for, as in bash, and which patterns are errors.
func TestExpand(t *testing.T) {
	for pattern, want := range map[string]string{
		"train.tar": "train.tar", "": "", `a\b`: `a\b`,
		"train-{000..003}.tar": "train-000.tar train-001.tar train-002.tar train-003.tar",
		"{8..11}":              "8 9 10 11", "{08..11}": "08 09 10 11", "{001..3}": "001 002 003", "{1..03}": "01 02 03", "{0..2}": "0 1 2", "{5..5}": "5",
		"{3..0}": "3 2 1 0", "{11..08}": "11 10 09 08", "{-1..1}": "-1 0 1", "{-01..1}": "-01 000 001", "{1..-1}": "1 0 -1",
		"{a,b}{1,2}": "a1 a2 b1 b2", "{a,b}-{1..2}{x,y}.tar": "a-1x.tar a-1y.tar a-2x.tar a-2y.tar b-1x.tar b-1y.tar b-2x.tar b-2y.tar",
		"{,x}": " x", "{1,2,}": "1 2 ", "{1..3,7}": "1..3 7",
		"{9223372036854775806..9223372036854775807}":   "9223372036854775806 9223372036854775807",
		"{-9223372036854775807..-9223372036854775808}": "-9223372036854775807 -9223372036854775808",
	} {
		got, err := Expand(pattern)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, pattern, strings.Join(got, " "), want)
	}
	const allowed, many = "must be a list such as {a,b}, or numbers such as {000..146}", "more than 1048576 names"
	for pattern, says := range map[string]string{
		"a{b": "a { has no }", "a}b": "a } has no {", "{a,b}}": "a } has no {", "{{a,b}": "nested", "x{a,b}{": "a { has no }", "{a,b}{1,2": "a { has no }",
		"p{a,{b,c}d,}s": "nested", "x{{a,b}}y": "nested", "{1..{2,3}}": "nested",
		"{a}": "{a} " + allowed, "{}": "{} " + allowed, "{000...146}": "{000...146} " + allowed, "{000-146}": allowed, "{a..c}": allowed, "{a..3}": allowed,
		"{1..3..x}": allowed, "{0..10..5}": allowed, "{1..}": allowed, "{1..2}{a}": "{a} " + allowed, "{1..99999999999999999999}": allowed,
		"{1..9223372036854775807}": many, "{0..1048576}": many, "{-9223372036854775808..0}": many, "{1..1024}{1..1024}{1..2}": many,
		"{" + strings.Repeat(",", 1<<20) + "}": many, strings.Repeat("{0,1,2,3,4,5,6,7}", 7): many,
	} {
		_, err := Expand(pattern)
		saysAll(t, err, "dataloader: Expand", says)
	}
	equal(t, "as many as there may be", len(must(Expand("{1..1024}{1..1024}"))), 1<<20)
}

// A gray JPEG and a GIF of 3×2 pixels. A test that encoded them would import the packages that Decode must import.
const jpegData = "/9j/2wCEAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4zNDIBCQkJDAsMGA0NGD" +
	"IhHCEyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMv/AAAsIAAIAAwEBEQD/xADSAAABBQEBAQEBAQAA" +
	"AAAAAAAAAQIDBAUGBwgJCgsQAAIBAwMCBAMFBQQEAAABfQECAwAEEQUSITFBBhNRYQcicRQygZGhCCNCscEVUtHwJDNicoIJChYXGBkaJSYnKC" +
	"kqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SVlpeYmZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfI" +
	"ycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/aAAgBAQAAPwD5/r//2Q=="
const gifData = "R0lGODlhAwACAIAAAAAAAP///ywAAAAAAwACAAACAoRfADs="

// TestDecode shows what is made of each kind of file.
func TestDecode(t *testing.T) {
	var b bytes.Buffer
	must(0, png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 2))))
	pngs, jpegs, gifs := b.String(), unBase64(jpegData), unBase64(gifData)
	for _, c := range []struct {
		name, data string
		want       string
	}{
		{"png", pngs, "*image.Gray (0,0)-(3,2)"}, {"d.x/a.seg.PNG", pngs, "*image.Gray (0,0)-(3,2)"},
		{"jpg", jpegs, "*image.Gray (0,0)-(3,2)"}, {"JPEG", jpegs, "*image.Gray (0,0)-(3,2)"},
		{"gif", gifs, "*image.Paletted (0,0)-(3,2)"}, {"jpg", pngs, "*image.Gray (0,0)-(3,2)"},
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"}, {"txt", "text", "string text"}, {"text", "text", "string text"}, {"a.transcript", "text", "string text"},
		{"cls", " 12\n", "int 12"}, {"cls2", "3", "int 3"}, {"class", "3", "int 3"}, {"index", "3", "int 3"}, {"id", "3", "int 3"}, {"count", "-1", "int -1"},
		{"bin", "12", "[]uint8 [49 50]"}, {"README", "x", "[]uint8 [120]"}, {"", "x", "[]uint8 [120]"}, {"txt.gz", "x", "[]uint8 [120]"},
	} {
		v, err := Decode(c.name, []byte(c.data))
		got := fmt.Sprintf("%T %v", v, v)
		if img, ok := v.(image.Image); ok {
			got = fmt.Sprintf("%T %v", v, img.Bounds())
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %s and %v, want %s", c.name, got, err, c.want)
		}
	}
	for name, data := range map[string]string{"a.png": "no image", "json": "{", "cls": "one", "gif": ""} {
		v, err := Decode(name, []byte(data))
		if saysAll(t, err, "Decode", name); v != nil {
			t.Errorf("%s: %v in spite of the error", name, v)
		}
	}
}
