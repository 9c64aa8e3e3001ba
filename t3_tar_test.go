package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
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
	return withBytes(data, at+148, fmt.Sprintf("%06o\x00 ", checksum(data[at:at+512])))
}

// gzipped compresses data.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must(w.Write(data))
	must(0, w.Close())
	return b.Bytes()
}

// isPacked reports whether data is compressed with gzip or bzip2.
func isPacked(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\x1f\x8b")) || bytes.HasPrefix(data, []byte("BZh"))
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

// briefRecord is a record in brief, of a key and a field and its content in turn.
func briefRecord(key string, files ...string) string {
	r := Record{Key: key}
	for file := range slices.Chunk(files, 2) {
		r.Files = append(r.Files, File{file[0], []byte(file[1])})
	}
	return brief(r)
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
		must(0, os.WriteFile(indexOf(name), []byte(text), 0o666))
	}
	return name
}

// indexOf is the name of the index of a shard.
func indexOf(name string) string { return strings.TrimSuffix(name, "tar") + "idx" }

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
	d, err := OpenTar(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.WriteIndex()
}

// isError reports whether an outcome is an error.
func isError(outcome string) bool { return strings.HasPrefix(outcome, "error") }

// same compares outcomes with those that are wanted, between semicolons. Of an error only what stands between dots is
// wanted, and no secret.
func same(t testing.TB, what string, got []string, want string) {
	t.Helper()
	all := strings.Split(want, "; ")
	if want == "" {
		all = nil
	}
	if len(got) != len(all) {
		t.Fatalf("%s:\n got %q\nwant %q", what, got, all)
	}
	for i, g := range got {
		says, failed := strings.CutPrefix(all[i], "error ")
		if !failed || !isError(g) {
			equal(t, what, g, all[i])
			continue
		}
		if saysAll(t, errors.New(g), strings.Split(says, " … ")...); strings.Contains(g, "secret") || strings.Contains(g, "sec%") {
			t.Errorf("%s tells a secret: %s", what, g)
		}
	}
}

// checkShard checks what every reader makes of a shard: Tar, if it is compressed and if not, resumed after every item and
// with a shard after it; OpenTar; and OpenTar with the index that it wrote. Every error is a TarError.
func checkShard(t *testing.T, opts TarOptions, data []byte, want, byIndex string) {
	t.Helper()
	shards := [][]byte{data}
	if !isPacked(data) {
		shards = append(shards, gzipped(data))
	}
	for _, shard := range shards {
		stream := tarOf(opts, shard, tarEntries("c.cls=4", "d.cls=5"), tarEntries("README=6"))
		same(t, "streamed", checkStream(t, stream, 0), strings.TrimPrefix(want+"; c{cls:4}; d{cls:5}", "; "))
		for _, err := range stream.Epoch(t.Context(), 0) {
			if e := (*TarError)(nil); err != nil && (!errors.As(err, &e) || e.Shard != "0") {
				t.Errorf("no TarError: %v", err)
			}
		}
	}
	if isPacked(data) {
		return
	}
	name := onDisk(t, "x.tar", data)
	same(t, "indexed", indexed(t, name), byIndex)
	if writeIndex(name) == nil {
		same(t, "with an index", indexed(t, name), byIndex)
	}
}

// TestTarRecords shows which entries make which records, as a stream and by index if they differ.
func TestTarRecords(t *testing.T) {
	long := strings.Repeat("long/", 40)
	for _, c := range []struct{ entries, want, byIndex string }{
		{"a.txt=1 a.cls=2 b.txt=3 b.cls=4", "a{txt:1 cls:2}; b{txt:3 cls:4}", ""},
		{"a.txt=1 b.txt=2 a.cls=3 b.cls=4", "a{txt:1}; b{txt:2}; a{cls:3}; b{cls:4}", ""},
		{"a.txt=1 c.txt=2", "a{txt:1}; c{txt:2}", ""}, // records do not span shards; the next shard begins with c.cls
		{"d/ d/a.txt=1 e/ d/a.cls=2", "d/a{txt:1 cls:2}", ""},
		{"a.txt=1 b.txt@a.txt a.cls=2", "a{txt:1 cls:2}", ""},
		{"a.txt=1 README=2 a.cls=3", "a{txt:1 cls:3}", ""},
		{"README=1 d/LICENSE=2 a.x/noext=3 .hidden=1 ./.hidden=1 d/.hidden=1 a.b/.hidden=1 ..a=1 d/._a.txt=1 .a.txt=1 d/.b.txt=1", "", ""},
		{"__meta__=1 __a.b__=1 __m__/x.json=1", "", ""},
		{"__meta__.json=1 d/__m__/x.json=2 __/x.txt=3", "__meta__{json:1}; d/__m__/x{json:2}; __/x{txt:3}", ""},
		{"x.__key__=1 x.__bad__=2 A.TXT=1 a.cls=2", "x{__key__:1 __bad__:2}; A{txt:1}; a{cls:2}", ""},
		{"a.Seg.PNG=1 a/b.c.d=1 a.x/b.txt=1 ./a.txt=1 a.=1 a..b=1", "a{seg.png:1}; a/b{c.d:1}; a.x/b{txt:1}; ./a{txt:1}; a{:1 .b:1}", ""},
		{`/some/22.0/1.1.png=1 a\b.txt=1 a.txt.gz=1`, `/some/22.0/1{1.png:1}; a\b{txt:1}; a{txt.gz:1}`, ""},
		{"a.txt= a.cls= ../../etc/x.txt=1 /abs/y.txt=2", "a{txt: cls:}; ../../etc/x{txt:1}; /abs/y{txt:2}", ""},
		{long + "a.txt=1 " + long + long + "ü.txt=1", long + "a{txt:1}; " + long + long + "ü{txt:1}", ""},
		// A fault of one record costs that record and no other. Here MaxFile is 340, and a file counts as its data, its name and 160 bytes.
		{"b.txt=1 b.cls=2 b.TXT=3 b.png=4 c.txt=5", `error entry "b.TXT", offset 2048: record "b" has another field "txt"; c{txt:5}`, ""},
		{"a.txt=0 b.txt=1 b.cls>a.txt b.png=4", `a{txt:0}; error entry "b.cls", offset 2048: it is a hard link to "a.txt"`, "a{txt:0}; b{txt:1 cls:0 png:4}"},
		{"a.txt=0 b.txt>a.txt b.cls>b.txt", `a{txt:0}; error it is a hard link to "a.txt"`, "a{txt:0}; b{txt:0 cls:0}"},
		{"b.txt=1 b.cls>c.txt b.png=4 c.txt=5", `error it is a hard link to "c.txt"; c{txt:5}`, ""},
		{"README=1 b.txt>README b.png=4", `error it is a hard link to "README"`, "b{txt:1 png:4}"},
		{"b.txt=xxxxxx b.cls=yyyyy b.png= c.txt=third c.cls=12345",
			"error its name and its 5 bytes make the record larger than MaxFile, 340; c{txt:third cls:12345}", "b{txt:xxxxxx cls:yyyyy png:}; c{txt:third cls:12345}"},
		{"b.cls= b.txt=xxxxxxxxxxx", "error its name and its 11 bytes make the record larger than MaxFile, 340", "b{cls: txt:xxxxxxxxxxx}"},
	} {
		t.Run(c.entries, func(t *testing.T) {
			opts := TarOptions{MaxFile: 340}
			if strings.Contains(c.entries, long) {
				opts.MaxFile = 0
			}
			checkShard(t, opts, tarEntries(strings.Fields(c.entries)...), c.want, cmp.Or(c.byIndex, c.want))
		})
	}
	// An empty file is a field, and a missing file is not. A record may have many files.
	var many []string
	for i := range 20000 {
		many = append(many, fmt.Sprintf("clip.%05d=", i))
	}
	for r := range must(Tar([]string{"x"}, TarOptions{Open: opening(bytes.NewReader(tarEntries(many...)))})).Epoch(t.Context(), 0) {
		equal(t, "files", len(r.Files), 20000)
		if r.Get("00001") == nil || r.Get("cls") != nil || r.Shard != "x" {
			t.Errorf("00001 %v, cls %v, shard %q", r.Get("00001"), r.Get("cls"), r.Shard)
		}
	}
}

// TestTarFaults shows that no fault of a shard is silent: the records before it come, then one error, then the next
// shard. Other readers lose most of these in silence. OpenTar returns the same error; of what it says, the first part.
func TestTarFaults(t *testing.T) {
	second := strings.Repeat("second", 200)
	// a.txt is at 0, a.cls at 1024, b.txt at 2048, b.cls at 4096, c.txt at 5120, c.cls at 6144, the end at 7168.
	sound := tarEntries("a.txt=first", "a.cls=1", "b.txt="+second, "b.cls=2", "c.txt=third", "c.cls=3")
	const a = "a{txt:first cls:1}; "
	ab := a + briefRecord("b", "txt", second, "cls", "2") + "; "
	abc := ab + "c{txt:third cls:3}; "
	packed := gzipped(sound)
	sized := func(size string) []byte { return withSum(withBytes(sound, 5120+124, size), 5120) }
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"sound", sound, abc},
		{"half an end marker", sound[:7168+512], abc},
		{"two gzip members", append(gzipped(sound[:3000]), gzipped(sound[3000:])...), abc},
		{"no end marker", sound[:7168], ab + `error no end marker … entry "c.cls", offset 7168 … record "c", which may lack files, is left out`},
		{"truncated between records", sound[:5120], a + `error no end marker … entry "b.cls", offset 5120 … record "b", which may lack files`},
		{"truncated between files", sound[:4096], a + `error no end marker … entry "b.txt" … record "b"`},
		{"truncated in data", sound[:3000], a + `error entry "b.txt", offset 2048 … unexpected EOF … record "b"`},
		{"truncated in padding", sound[:7000], ab + `error unexpected EOF … entry "c.cls" … record "c"`},
		{"truncated in a header", sound[:5120+100], a + `error truncated … entry "b.cls", offset 5120 … record "b"`},
		{"truncated after the first header", sound[:512], `error entry "a.txt" … unexpected EOF … record "a"`},
		{"truncated in an end marker", sound[:7168+700], ab + `error unexpected EOF … record "c"`},
		{"truncated after a long name", tarEntries(strings.Repeat("ü", 60) + ".txt=1")[:1024], "error unexpected EOF"},
		{"bad checksum", withBytes(sound, 5120+10, "x"),
			a + `error the headers that come next: archive/tar: invalid tar header … entry "b.cls", offset 5120 … record "b"`},
		{"bad number", withSum(withBytes(sound, 5120+108, "zzzz"), 5120), a + "error invalid tar header … offset 5120"},
		{"a block of zeros inside", withBytes(sound, 5120, strings.Repeat("\x00", 512)), a + "error invalid tar header … offset 5120"},
		{"two archives", slices.Concat(sound, sound), abc + `error after the end marker … entry "", offset 7168`},
		{"4 EiB", sized("\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"),
			ab + `error entry "c.txt" … 4611686018427387904 bytes make the record larger than MaxFile, 1073741824`},
		{"2^63-1 bytes", sized("\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"), ab + `error entry "c.txt" … 9223372036854775807 bytes`},
		{"negative size", sized("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), a + "error invalid tar header"},
		{"a bad record, and truncated", tarEntries("a.txt=first", "a.cls=1", "b.txt=", "b.txt=")[:3072],
			a + `error has another field "txt" … truncated … record "b"`},
		{"no bytes", nil, "error the archive is empty"},
		{"a page", []byte("<!DOCTYPE html>" + strings.Repeat("<p>Not found</p>", 100)), "error invalid tar header"},
		{"a short page", []byte("<!DOCTYPE html>"), "error truncated"},
		{"gzip truncated", packed[:len(packed)/2], `error unexpected EOF … record "a"`},
		{"gzip truncated at its end", packed[:len(packed)-4], abc + "error unexpected EOF"},
		{"gzip with a flipped sum", withBytes(packed, len(packed)-6, string(packed[len(packed)-6]^1)), abc + "error gzip: invalid checksum"},
		{"gzip and more", slices.Concat(packed, []byte("and something more")), abc + "error gzip: invalid header"},
		{"no gzip", []byte("\x1f\x8b"), "error unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := strings.TrimSuffix(c.want, "; ")
			byIndex := want
			if at := strings.Index(want, "error"); at >= 0 {
				byIndex, _, _ = strings.Cut(want[at:], " … ")
			}
			checkShard(t, TarOptions{}, c.data, want, byIndex)
		})
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
	for _, shard := range [][]byte{large, gzipped(large)} { // only the first can be skipped with a seek
		file := &countingFile{Reader: bytes.NewReader(shard)}
		stream := must(Tar([]string{"x"}, TarOptions{Fields: []string{"cls"}, Open: opening(file)}))
		equal(t, "seeking", outcomes(briefly(stream).Epoch(t.Context(), 0)), "[a{cls:1} b{cls:2}]")
		if file.read > 4*tarBuffer || !file.closed {
			t.Errorf("%d bytes of %d were read; closed %t", file.read, len(large), file.closed)
		}
	}
}

// TestTarOptions shows that arguments that make no sense are errors that name them.
func TestTarOptions(t *testing.T) {
	fails := func(opts TarOptions, shards ...string) error { return errorOf(Tar(shards, opts)) }
	refused(t, []refusal{
		{fails(TarOptions{}), "Tar: there are no shards"},
		{fails(TarOptions{}, "a", ""), "Tar: shard 1 has an empty name"},
		{fails(TarOptions{Shard: Shard{0, 3}}, "a", "b"),
			"Tar: 2 shards are too few for 3 ranks: leave TarOptions.Shard out and deal records with Stream.Shard"},
		{fails(TarOptions{Shard: Shard{2, 2}}, "a", "b"), "Tar: Shard is {Index: 2, Count: 2}"},
		{fails(TarOptions{MaxFile: -1}, "a"), "Tar: MaxFile is -1, must not be negative"},
	})
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

// TestTarShards shows how shards are dealt out to ranks: in the order given or, in each epoch, in that of Random with the
// seed; then every Count-th. Mix reads several shards at once.
func TestTarShards(t *testing.T) {
	names, shards := tenShards()
	for _, opts := range []TarOptions{{}, {Shuffle: true}, {Shuffle: true, Seed: 1}, {Shuffle: true, Seed: 2}} {
		order := Sequential(10)
		if opts.Shuffle {
			order = Random(10, opts.Seed)
		}
		opts.Open = inMemory(shards)
		for _, opts.Shard = range []Shard{{}, {0, 3}, {1, 3}, {2, 3}, {1, 4}, {2, 4}} {
			stream := briefly(must(Tar(names, opts)))
			for epoch := range 3 {
				var want []string
				for pos := opts.Shard.Index; pos < 10; pos += max(opts.Shard.Count, 1) {
					i := order.Order(epoch)(pos)
					want = append(want, fmt.Sprintf("%da{txt:}", i), fmt.Sprintf("%db{txt:}", i))
				}
				equal(t, fmt.Sprint(order, opts.Shard, epoch), collect(t, stream.Epoch(t.Context(), epoch)), want)
			}
		}
	}
	opts := TarOptions{Shuffle: true, Seed: 1, Shard: Shard{1, 2}, Open: inMemory(shards)}
	checkStream(t, briefly(must(Tar(names, opts))), 5)

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
	shards["ab"], shards["c"] = tarEntries("1.txt=", "2.txt="), tarEntries("3.txt=")
	var moved []string
	for _, name := range names {
		moved = append(moved, "https://host/dir/"+name+"?sig=1")
		shards[moved[len(moved)-1]] = shards[name]
	}
	from := func(at Cursor, opts TarOptions, names ...string) []string {
		opts.Open = inMemory(shards)
		return outcomes(briefly(must(Tar(names, opts))).Run(t.Context(), ptr(throughJSON(t, at))))
	}
	after := func(n int, opts TarOptions, names ...string) (at Cursor) {
		opts.Open = inMemory(shards)
		for item := range must(Tar(names, opts))(t.Context(), at) {
			if at = item.Next; at.Pos == n {
				break
			}
		}
		return at
	}
	at := after(3, TarOptions{}, names...)
	equal(t, "elsewhere", from(at, TarOptions{}, moved...)[:2], "[1b{txt:} 2a{txt:}]")
	for what, got := range map[string][]string{
		"fewer shards":          from(at, TarOptions{}, names[:9]...),
		"in another order":      from(at, TarOptions{}, append(names[1:10:10], names[0])...),
		"shuffled":              from(at, TarOptions{Shuffle: true}, names...),
		"of another rank":       from(at, TarOptions{Shard: Shard{0, 2}}, names...),
		"with the same letters": from(after(1, TarOptions{}, "ab", "c"), TarOptions{}, "a", "bc"),
	} {
		same(t, what, got, "error it was made by Tar( … this is Tar(")
	}

	// After a last shard that failed comes nothing. A shard after the last, or before the first, is an error.
	opts, missing := TarOptions{Shard: Shard{1, 4}}, strings.Fields("0 1 2 3 4 5 6 7 8 9")
	last := after(3, opts, missing...)
	same(t, "after the last shard", from(last, opts, missing...), "")
	for _, damage := range []func(*tarState){
		func(s *tarState) { s.Shard++ }, func(s *tarState) { s.Shard = -1 }, func(s *tarState) { s.Offset = -1 },
	} {
		state := *last.State.(*tarState)
		damage(&state)
		same(t, "damaged", from(Cursor{last.Epoch, last.Pos, state}, opts, missing...), "error damaged … 3 shards")
	}
}

// TestTarOpeners shows that whatever an Opener and its reader do costs one shard, and that readers are closed.
func TestTarOpeners(t *testing.T) {
	data := tarEntries("a.txt=1", "b.txt=2", "c.txt=3")
	large := tarEntries("a.txt=" + strings.Repeat("x", 2*tarBuffer))
	reads := func(data []byte, fail func() error) Opener { return opening(breaksAfter(data, fail)) }
	opens := func(do func() error) Opener {
		return func(context.Context, string, int64) (io.ReadCloser, error) { return nil, do() }
	}
	fails := func() error { return errBad }
	panics := func() error { panic("broken") }
	stands := func() error { return nil } // neither bytes nor an error, between small reads and large ones
	calls := 0
	deniesOnce := func() error {
		calls++
		return []error{errors.New("denied"), io.EOF}[calls-1]
	}
	for _, c := range []struct {
		open Opener
		want string
	}{
		{reads(data[:2048+600], fails), `a{txt:1}; b{txt:2}; error entry "c.txt", offset 2048 … bad sample … record "c"`},
		{reads(nil, deniesOnce), "error denied … offset 0"},
		{reads(data[:2048+600], panics), `a{txt:1}; b{txt:2}; error entry "c.txt" … panic: broken`},
		{reads(nil, panics), "error panic: broken … offset 0"},
		{opens(panics), "error panic: broken"},
		{opens(stands), "error the Opener returned neither a reader nor an error"},
		{opens(func() error { return io.EOF }), "error EOF"},
		{reads(nil, stands), "error multiple Read calls return no data or error"},
		{reads(large[:100], stands), "error multiple Read calls return no data or error"},
		{reads(large[:1000], stands), "error multiple Read calls return no data or error"},
		{reads(large[:len(large)-100], stands), "error multiple Read calls return no data or error"},
	} {
		got := tarOutcomes(t, func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
			if name == "x" {
				return c.open(ctx, name, offset)
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, "x", "y")
		same(t, c.want, got, c.want+` … shard "x"; a{txt:1}; b{txt:2}; c{txt:3}`)
	}
	for _, shard := range [][]byte{data, nil} { // closed after a break, and when the archive cannot be read
		file := &countingFile{Reader: bytes.NewReader(shard)}
		for range must(Tar([]string{"x"}, TarOptions{Open: opening(file)})).Epoch(t.Context(), 0) {
			break
		}
		equal(t, "closed", file.closed, true)
	}
}

// TestTarFiles shows how shards in files are opened: a missing one is an error of its own, and a resume seeks. No entry
// is written to where its name says, no name is executed, and no file but the index is written.
func TestTarFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	name, missing := filepath.Join(dir, "x.tar"), filepath.Join(dir, "missing.tar")
	must(0, os.Mkdir(dir, 0o777))
	must(0, os.WriteFile(name, tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd", "d/../../evil.idx=3"), 0o666))
	const records = "../../evil{txt:1}; /etc/evil{txt:2}; d/../../evil{idx:3}"
	stream := briefly(must(Tar([]string{missing, dir, name}, TarOptions{})))
	same(t, "streamed", checkStream(t, stream, 0), "error missing.tar … no such file; error is a directory; "+records)
	must(0, writeIndex(name))
	same(t, "indexed", indexed(t, name), records)

	r := must(OpenShard(t.Context(), name, 512))
	defer r.Close()
	equal(t, "from byte 512 on", string(must(io.ReadAll(r))[:1]), "1")
	for _, name := range []string{missing, "pipe:touch " + dir + "/evil", "|touch " + dir + "/evil", "-"} {
		if r, err := OpenShard(t.Context(), name, 0); r != nil || err == nil {
			t.Errorf("%s was opened: %v, %v", name, r, err)
		}
	}
	if r, err := OpenShard(t.Context(), name, -1); r != nil || err == nil {
		t.Errorf("from byte -1 on: %v, %v", r, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	equal(t, "with a context that has ended", errorOf(OpenShard(ctx, name, 0)), errBad)
	found := slices.Concat(must(filepath.Glob(filepath.Dir(dir)+"/*")), must(filepath.Glob(dir+"/*")))
	equal(t, "files", found, []string{dir, dir + "/x.idx", name})
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
	for _, c := range []struct {
		shard []byte
		want  string // the outcomes, and the epoch after the last record
	}{
		{data, "[a{txt:1} b{txt:2}] 1"}, {gzipped(data), "[a{txt:1} b{txt:2}] 1"},
		{flipped, "[a{txt:1} b{txt:2} error bad sample] 0"}, // which has an error to come
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		at := Cursor{}
		var got []string
		for v, err := range tarOf(TarOptions{}, c.shard).Run(ctx, &at) {
			if got = append(got, outcomes(one(v, err))...); v == "b{txt:2}" {
				cancel(errBad)
			}
		}
		equal(t, "the end", fmt.Sprint(got, at.Epoch), c.want)
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
	if long, many := held(1, 20000), held(2000, 10); max(long, many) > few+(1<<20) {
		t.Errorf("a shard of 20000 records holds %d bytes, 2000 shards of 10 %d, one of 100 %d", long, many, few)
	}
}

// compareReaders checks that archive/tar and this package's reader agree on every entry of an archive, and that this
// one reports every error of archive/tar. It may report more: archives that are truncated between two entries, and data
// after the end marker. It may report an error one entry later, when it reads on. Compressed archives are left out.
func compareReaders(t testing.TB, data []byte, maxFile int64) {
	t.Helper()
	if isPacked(data) {
		return
	}
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

// TestTarArchives reads every archive with archive/tar, with Tar, with OpenTar, and with the index in a file, if one can
// be written. All agree, and those of GNU tar, in every format that it writes, yield what was put in.
func TestTarArchives(t *testing.T) {
	const a, c = "a{cls:1 txt:first\n}; ", "c{cls:3 txt:}"
	const holes = "s{bin:100000 bytes #85ec920 cls:8}; t{cls:9 txt:after the holes\n}; u{bin:300008 bytes #d65ec958 cls:10}"
	b := briefRecord("b", "cls", "2", "txt", strings.Repeat("second\n", 100)) + "; "
	long := "bb-folder-number-0001/bb-folder-number-0002/bb-folder-number-0003/bb-folder-number-0004/" +
		"bb-folder-number-0005/bb-folder-number-0006/bb-folder-number-0007/"
	all := archives(t)
	known := map[string]bool{}
	for _, gnu := range []struct{ names, want, byIndex, unwritten string }{
		{"v7 oldgnu gnu ustar posix posix-global", a + b + c, "", ""},
		{"gzip bzip2 members", a + b + c, "error it is compressed … use Tar", "it is compressed"},
		{"xz", "error compressed with xz … gzip", "", "compressed with xz"},
		{"zstd", "error compressed with zstd … gzip", "", "compressed with zstd"},
		{"dumpdir", "dump/" + a + "dump/" + b + "dump/" + c, "", ""},
		{"gnu-long oldgnu-long ustar-prefix", a + b + long + "long-name{cls:4 txt:long\n}; " + c, "", ""},
		{"posix-long", a + b + long + long + "long-name{cls:5 txt:longer\n}; " + c, "", ""},
		{"gnu-utf8 posix-utf8", a + "größe/日本{cls:6 txt:größe\n}", "", ""},
		{"gnu-sparse posix-sparse-0.0 posix-sparse-0.1 posix-sparse-1.0", a + holes, "", `"s.bin"`},
		{"gnu-links posix-links", a + `error entry "b.txt" … it is a hard link to "a.txt"` + "; c{cls:3}; d/x{cls:7 txt:x\n}",
			a + "b{cls:2 txt:first\n}; c{cls:3}; d/x{cls:7 txt:x\n}", `"b.txt"`},
	} {
		for _, name := range strings.Fields(gnu.names) {
			name += ".tar"
			known[name] = true
			got, again, err := readArchive(t, name, all[name])
			same(t, name, got, gnu.want)
			same(t, name+" indexed", again, cmp.Or(gnu.byIndex, gnu.want))
			if gnu.unwritten != "" {
				saysAll(t, err, gnu.unwritten)
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	ended := checkStream(t, tarOf(TarOptions{MaxFile: 1000}, all["gnu-sparse.tar"]), 0)
	same(t, "a sparse file larger than MaxFile ends its shard", ended, `error entry "s.bin" … MaxFile, 1000 … record "a"`)
	for name, data := range all {
		if known[name] {
			continue
		}
		got, again, _ := readArchive(t, name, data)
		if !slices.ContainsFunc(got, isError) {
			equal(t, name+" indexed", again, got)
		} else if !slices.ContainsFunc(again, isError) && !strings.Contains(fmt.Sprint(got), "hard link") {
			t.Errorf("%s: Tar yields %q, OpenTar %q", name, got, again)
		}
	}
}

// readArchive returns what Tar and OpenTar make of an archive, and the error of WriteIndex. It checks that archive/tar
// agrees, and that OpenTar yields the same with the index.
func readArchive(t *testing.T, name string, data []byte) (streamed, again []string, err error) {
	t.Run(name, func(t *testing.T) {
		compareReaders(t, data, 1<<24)
		streamed = checkStream(t, tarOf(TarOptions{MaxFile: 1 << 24}, data), 0)
		file := onDisk(t, "x.tar", data)
		again = indexed(t, file)
		if err = writeIndex(file); err == nil {
			equal(t, "with an index", indexed(t, file), again)
		}
	})
	return streamed, again, err
}

// TestParseHeader shows which headers the fast path takes, and which it leaves to archive/tar.
func TestParseHeader(t *testing.T) {
	all := archives(t)
	for format, at := range map[string]int{"v7": 0, "oldgnu": 0, "gnu": 0, "ustar": 0, "posix-global": 1024, "ustar-prefix": 0} {
		name, size, ok := parseHeader(all[format+".tar"][at:][:512])
		equal(t, format, fmt.Sprint(name, size, ok), "a.cls1 true")
	}
	header := all["ustar.tar"][:512]
	if _, _, ok := parseHeader(withSum(withBytes(withBytes(header, 5, "/"), 156, "\x00"), 0)); ok {
		t.Error("a folder of v7 is no file")
	}
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
		compareReaders(t, data, maxFile)
		stream := briefly(must(Tar([]string{"x"}, TarOptions{MaxFile: maxFile, Open: func(_ context.Context, _ string, offset int64) (io.ReadCloser, error) {
			return &countingFile{Reader: bytes.NewReader(data[min(int(offset), len(data)):])}, nil
		}})))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		want := outcomes(stream.Epoch(t.Context(), 0))
		runtime.ReadMemStats(&after)
		if limit := uint64(16<<20 + (len(data)/tarBlock+1)*2*maxFile); after.TotalAlloc-before.TotalAlloc > limit {
			t.Fatalf("%d bytes of memory for %d of data", after.TotalAlloc-before.TotalAlloc, len(data))
		}
		k := 0
		for item := range stream(t.Context(), Cursor{}) {
			if k++; k <= 8 || k > len(want)-8 {
				equal(t, "resumed", outcomes(stream.Run(t.Context(), &item.Next)), want[k:])
			}
		}
	})
}

// A tarServer is a web server with one object, and a history of what it was asked.
type tarServer struct {
	*httptest.Server
	web   web
	asked chan string     // Range and If-Range of each request
	waits []time.Duration // between them
}

// An answer writes the answer to the n-th request, from 1 on.
type answer func(n int, w http.ResponseWriter, r *http.Request)

// serveTar starts a server. Its answers depend on the answer function only.
func serveTar(t *testing.T, answer answer) *tarServer {
	s := &tarServer{asked: make(chan string, 100)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if encoding := r.Header.Get("Accept-Encoding"); !r.Close || encoding != "identity" || strings.HasPrefix(r.Header.Get("If-Range"), "W") {
			t.Errorf("asked to keep the connection, %t, for the encoding %q, or with a weak tag: %v", !r.Close, encoding, r.Header)
		}
		s.asked <- strings.TrimSpace(r.Header.Get("Range") + " " + r.Header.Get("If-Range"))
		answer(len(s.asked), w, r)
	}))
	t.Cleanup(s.Close)
	s.web = web{client: s.Client(), attempts: 6, stall: time.Minute, wait: func(_ context.Context, d time.Duration) error {
		s.waits = append(s.waits, d)
		return nil
	}}
	return s
}

// requests returns what the server was asked.
func (s *tarServer) requests() (all []string) {
	for len(s.asked) > 0 {
		all = append(all, <-s.asked)
	}
	return all
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

// A breaking answer ends with the connection after left bytes, which may be those of the headers.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.left < len(p) {
		b.ResponseWriter.Write(p[:b.left])
		b.ResponseWriter.(http.Flusher).Flush()
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

// inTurn are the answers to the first requests; the last answers all others too.
func inTurn(answers ...answer) answer {
	return anew(func(n int) answer { return answers[min(n, len(answers))-1] })
}

// TestWeb reads a shard from servers that behave badly, each in its own way. Every record comes exactly once, or the
// shard ends in an error.
func TestWeb(t *testing.T) {
	var entries, all []string
	for i := range 100 {
		key, bin := strconv.Itoa(i), strings.Repeat("x", 7*i)
		entries = append(entries, key+".txt="+key, key+".bin="+bin)
		all = append(all, briefRecord(key, "txt", key, "bin", bin))
	}
	data := tarEntries(entries...) // about 150 kB
	parts := func(size int) int { return (len(data) + size - 1) / size }
	const tag = `"one"`
	good, breaks := sends(data, tag, -1), sends(data, tag, 30000)
	tagged := func(format string, limit int) answer {
		return anew(func(n int) answer { return sends(data, fmt.Sprintf(format, n), limit) })
	}
	busy := func(code int) answer { return status(code, "Retry-After", "100") }
	for _, c := range []struct {
		name   string
		answer answer
		asked  int    // the requests
		says   string // what the error says; empty: there is none
	}{
		{"good", good, 1, ""},
		{"breaks all the time", sends(data, tag, 16000), parts(16000), ""},
		{"breaks, and has no ranges", ignoring("Range", anew(func(n int) answer { return sends(data, tag, 30000*n) })), parts(30000), ""},
		{"breaks without a length", func(n int, w http.ResponseWriter, r *http.Request) {
			w = &breaking{w, 60000 * n}
			for part := range slices.Chunk(data, 1000) {
				w.Write(part)
			}
		}, parts(60000), ""},
		{"breaks, and never gets further", ignoring("Range", breaks), 6, "attempt 6: unexpected EOF"},
		{"breaks before the first byte", sends(data, tag, 0), 6, "attempt 6: unexpected EOF"},
		{"not yet", inTurn(busy(503), busy(408), busy(429), busy(500), busy(504), good), 6, ""},
		{"never", status(503), 6, "attempt 6: 503 Service Unavailable"},
		{"no connection", func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 6, "attempt 6: EOF"},
		{"not found", status(404), 1, "404 Not Found"},
		{"forbidden", status(403), 1, "403 Forbidden"},
		{"forbidden later", inTurn(breaks, status(403)), 2, "403 Forbidden"},
		{"nothing", status(204), 1, "204 No Content"},
		{"changes its tag", tagged(`"%d"`, 30000), 2, "has changed"},
		{"changes its tag, and does not look", ignoring("If-Range", tagged(`"%d"`, 30000)), 2, "has changed"},
		{"changes its date", func(n int, w http.ResponseWriter, r *http.Request) {
			http.ServeContent(&breaking{w, 30000}, r, "", time.Unix(int64(n), 0), bytes.NewReader(data))
		}, 2, "has changed"},
		{"changes its length", anew(func(n int) answer { return sends(data[:len(data)-n], "", 30000) }), 2, "has changed"},
		{"changes its weak tag", tagged(`W/"%d"`, 30000), 2, "has changed"},
		{"changes before the first byte", tagged(`"%d"`, 0), 2, "has changed"},
		{"has a weak tag", sends(data, `W/"one"`, 40000), parts(40000), ""},
		{"redirects to nowhere", status(302, "Location", "http://user:secret@host:bad/x?sig=secret"), 1, "something that is not a URL"},
		{"promises more than it has", inTurn(func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, status(416)), 2, "416"},
		{"has a truncated shard", sends(data[:20480], tag, -1), 1, "unexpected EOF"},
		{"sends another range", inTurn(breaks, func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Range", "bytes=5-")
			breaks(n, w, r)
		}), 2, `answers with the range "bytes 5-`},
		{"sends short ranges", inTurn(breaks, func(n int, w http.ResponseWriter, r *http.Request) {
			from := must(strconv.Atoi(strings.Trim(r.Header.Get("Range"), "bytes=-")))
			r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+29999))
			good(n, w, r)
		}), parts(30000), ""},
		{"compresses on the way", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			sends(gzipped(data), tag, -1)(n, w, r)
		}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serveTar(t, c.answer)
			got := s.records(t, "/x.tar")
			equal(t, "requests", len(s.asked), c.asked)
			want := all
			if c.says != "" {
				want = append(slices.Clone(all[:max(0, len(got)-2)]), "error /x.tar … "+c.says)
			}
			same(t, "records", got, strings.Join(want, "; ")+"; z{txt:after}")
		})
	}
}

// TestWebWaits shows what is asked for after a failure, and how long the waits are: they double up to 30 seconds, start
// anew after a byte, and are as long as Retry-After says.
func TestWebWaits(t *testing.T) {
	const sec = time.Second
	breaks := sends(tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000)), `"tag"`, 4000)
	for _, c := range []struct {
		answer   answer
		attempts int
		requests []string
		waits    []time.Duration
	}{
		{inTurn(breaks, status(429, "Retry-After", "100"), breaks), 6,
			[]string{"", `bytes=4000- "tag"`, `bytes=4000- "tag"`, `bytes=8000- "tag"`, `bytes=12000- "tag"`}, []time.Duration{sec, 100 * sec, sec, sec}},
		{status(500), 10, make([]string, 10), []time.Duration{1 * sec, 2 * sec, 4 * sec, 8 * sec, 16 * sec, 30 * sec, 30 * sec, 30 * sec, 30 * sec}},
	} {
		s := serveTar(t, c.answer)
		s.web.attempts = c.attempts
		s.records(t, "")
		equal(t, "requests", s.requests(), c.requests)
		equal(t, "waits", len(s.waits), len(c.waits))
		for i, d := range s.waits {
			if want := c.waits[i]; d > want || d < want/2 || want > 30*sec && d != want {
				t.Errorf("wait %d is %v, want %v or, without Retry-After, up to a half less", i, d, want)
			}
		}
	}
}

// TestWebStream shows how a stream reads from the web: a resume asks for what follows the cursor, but for all of a
// compressed shard; nothing is asked for after Close; and the end of the context ends a request that is waited for.
func TestWebStream(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000))
	for _, c := range []struct {
		data  []byte
		asked string
	}{{data, "[ bytes=5632-]"}, {gzipped(data), "[ ]"}} {
		s := serveTar(t, sends(c.data, `"tag"`, -1))
		stream := briefly(must(Tar([]string{s.URL}, TarOptions{Open: s.web.connect})))
		var at Cursor
		for range stream.Run(t.Context(), &at) {
			break
		}
		same(t, "the rest", outcomes(stream.Run(t.Context(), ptr(throughJSON(t, at)))), briefRecord("b", "txt", strings.Repeat("y", 5000)))
		equal(t, "requests", s.requests(), c.asked)
	}

	s := serveTar(t, sends(data, `"tag"`, 6000))
	r := must(s.web.connect(t.Context(), s.URL, 0))
	r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, os.ErrClosed) || len(s.asked) != 1 {
		t.Errorf("after Close: %v, %d requests", err, len(s.asked))
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	s = serveTar(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:6000])
		w.(http.Flusher).Flush()
		cancel(errBad)
		<-r.Context().Done()
	})
	got := outcomes(must(Tar([]string{s.URL, "y"}, TarOptions{Open: s.web.connect})).Epoch(ctx, 0))
	equal(t, "stopped", got[len(got)-1], "error bad sample")
}

// TestRetryAfter shows what Retry-After may say: seconds or a date, at most two minutes.
func TestRetryAfter(t *testing.T) {
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		header   string
		min, max time.Duration // in seconds
	}{
		{"", 0, 0}, {"soon", 0, 0}, {"-5", 0, 0}, {"0", 0, 0}, {"7", 7, 7}, {"119", 119, 119}, {"121", 120, 120},
		{"99999999999999999999", 120, 120}, {in(-time.Hour), 0, 0}, {in(100 * time.Second), 90, 101}, {in(time.Hour), 120, 120},
	} {
		if d := retryAfter(c.header); d < c.min*time.Second || d > c.max*time.Second {
			t.Errorf("%q: %v, want %d to %d seconds", c.header, d, c.min, c.max)
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
		again, err := o.accept(&http.Response{StatusCode: c.code, Status: strconv.Itoa(c.code), ContentLength: c.length, Header: header})
		if c.says != "" {
			saysAll(t, err, c.says)
		}
		equal(t, fmt.Sprintf("%v: is accepted, is not asked for again, behind and size", c),
			[]any{err == nil, again == never, o.behind, o.size}, []any{c.says == "", c.says != "", c.behind, c.after})
	}
}

// TestWebStall shows, in fake time and over a network in memory, that a server that stops in the middle is asked again
// after a minute, and that a caller that takes its time is no such server.
func TestWebStall(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt=2")
	large := strings.Repeat("x", 3*tarBuffer)
	slow := tarEntries("a.bin="+large, "b.bin="+large)
	whole := func(promised int, sent []byte) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", promised, sent)
	}
	rest := fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3000-%d/%d\r\nContent-Length: %d\r\n\r\n%s",
		len(data)-1, len(data), len(data)-3000, data[3000:])
	for _, c := range []struct {
		answers []string // each followed by silence
		asked   string
		pause   time.Duration // of the caller, after each record
		stalls  int
		want    string
	}{
		{[]string{whole(len(data), data[:3000]), "", rest}, "[ bytes=3000- bytes=3000-]", 0, 2,
			briefRecord("a", "txt", strings.Repeat("x", 5000)) + "; b{txt:2}"},
		{[]string{whole(len(slow), slow)}, "[]", time.Hour, 0, briefRecord("a", "bin", large) + "; " + briefRecord("b", "bin", large)},
		{make([]string, 6), "[     ]", 0, 6, "error attempt 6: the server has stalled"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := tarServer{asked: make(chan string, 10)}
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go func() {
					defer server.Close()
					if r, err := http.ReadRequest(bufio.NewReader(server)); err == nil {
						s.asked <- r.Header.Get("Range")
						io.WriteString(server, c.answers[min(len(s.asked), len(c.answers))-1])
						io.Copy(io.Discard, server) // until the client goes
					}
				}()
				return client, nil
			}}
			defer transport.CloseIdleConnections()
			w := web{client: &http.Client{Transport: transport}, attempts: 6, stall: time.Minute, wait: pause}
			var got []string
			start := time.Now()
			for v, err := range briefly(must(Tar([]string{"http://x"}, TarOptions{Open: w.connect}))).Epoch(t.Context(), 0) {
				got = append(got, outcomes(one(v, err))...)
				time.Sleep(c.pause)
			}
			took := time.Since(start) - time.Duration(len(got))*c.pause
			same(t, "records", got, c.want)
			equal(t, "requests", s.requests(), c.asked)
			if least := time.Duration(c.stalls) * time.Minute; took < least || took > least+time.Second<<c.stalls-time.Second {
				t.Errorf("it took %v, want %d stalls of a minute and the waits after them", took, c.stalls)
			}
		})
	}
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
	for _, c := range []struct {
		open       Opener
		name, says string
	}{
		{s.web.connect, strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/x.tar?sig=secret#secret", "/x.tar … 404"},
		{s.web.connect, "http://user:secret@127.0.0.1:1/x.tar?sig=secret", "http://127.0.0.1:1/x.tar"},
		{s.web.connect, "http://user:secret@127.0.0.1:secret/x.tar", "not a URL"},
		{s.web.connect, "http://user:sec%ret@x/", "not a URL"},
		{nil, "s3://user:secret@bucket/x.tar?sig=secret", "s3://bucket/x.tar … http and https … Opener"},
	} {
		same(t, c.name, tarOutcomes(t, c.open, c.name), "error "+c.says)
	}
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		same(t, scheme, indexed(t, scheme+"://user:secret@host/x.tar?sig=secret"), "error "+strings.ToLower(scheme)+"://host/x.tar … Tar reads URLs")
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
	for epoch := range 5 {
		var got []string
		for _, r := range samples(t, loader, epoch) {
			got = append(got, brief(r))
			if f := r.Files[0]; cap(f.Data) != len(f.Data) {
				t.Errorf("field %s of %s may grow into the next", f.Name, r.Key)
			}
		}
		equal(t, "loaded", got, want)
	}
	for _, i := range []int{-1, 5} {
		saysAll(t, errorOf(data.Get(t.Context(), i)), fmt.Sprintf("index %d", i), "5 samples")
	}
	equal(t, "the shard of record 3", must(data.Get(t.Context(), 3)).Shard, one)
	data.Close()
	_, err := data.Get(t.Context(), 0)
	if e := (*TarError)(nil); !errors.As(err, &e) || !errors.Is(err, os.ErrClosed) || e.Shard != one || e.Entry != "d/a.txt" {
		t.Errorf("after Close: %v", err)
	}
	refused(t, []refusal{
		{errorOf(OpenTar()), "OpenTar: there are no shards"},
		{errorOf(OpenTar(one, one+"missing")), "OpenTar: shard … one.tarmissing … no such file"},
		{errorOf(OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))), "x.tar … compressed … use Tar"},
	})
}

// The shard of the tests of the index, and its index.
const (
	indexedShard = "d/ d/a.txt=first d/a.Seg.PNG=1 b.txt= b.cls=2 README=3"
	indexText    = "v1.2 2\ntxt 1024 5 d/a.txt Seg.PNG 2048 1 d/a.Seg.PNG\ntxt 3072 0 b.txt cls 3584 1 b.cls\n"
)

// TestTarIndex shows which index is written, byte for byte, that indexes written by others are read, and that an index
// of another shard is noticed when the shard is opened, or at the first read of a record about which the index is wrong.
func TestTarIndex(t *testing.T) {
	shard := func(entries string) []byte { return tarEntries(strings.Fields(entries)...) }
	name := onDisk(t, "x.tar", shard(indexedShard))
	must(0, writeIndex(name))
	equal(t, "the index", string(must(os.ReadFile(indexOf(name)))), indexText)
	equal(t, "files beside the shard", len(must(os.ReadDir(filepath.Dir(name)))), 2)

	const a, b = "d/a{txt:first seg.png:1}", "b{txt: cls:2}"
	const stale = "error x.tar … the shard is not the one that was indexed … x.idx"
	const opening = "error dataloader: OpenTar: shard … the shard is not the one that was indexed … x.idx"
	three := shard("a.txt=1 b.txt=2 c.txt=3")
	for _, c := range []struct {
		name, index string
		shard       []byte
		want        string
	}{
		{"the same", indexText, shard(indexedShard), a + "; " + b},
		{"other line ends", strings.ReplaceAll(indexText, "\n", "\r\n"), shard(indexedShard), a + "; " + b},
		{"what is no record", "v1.2 4\nx 512 1 __m__\ntxt 1536 1 a.txt\nh 2560 1 .h\ncls 3584 1 a.cls\n", shard("__m__=x a.txt=1 .h=2 a.cls=3"), "a{txt:1 cls:3}"},
		{"one record in two", "v1.2 2\ntxt 1024 1 a.txt\ncls 3072 1 a.cls\n", shard("d/ a.txt=1 README=2 a.cls=3 b/"), "a{txt:1 cls:3}"},
		{"no records", "v1.2 0\n", three, "a{txt:1}; b{txt:2}; c{txt:3}"},
		{"a record lacks in the middle", "v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 c.txt\n", three, opening},
		{"a record lacks in front", "v1.2 2\ntxt 1536 1 b.txt\ntxt 2560 1 c.txt\n", three, opening},
		{"a hard link lacks", "v1.2 2\ntxt 512 1 a.txt\ntxt 2048 1 b.txt\n", shard("a.txt=1 a.cls>a.txt b.txt=2"), opening},
		{"a hard link lacks at the end", "v1.2 2\ntxt 512 1 a.txt\ntxt 1536 1 b.txt\n", shard("a.txt=1 b.txt=2 b.cls>a.txt"), opening},
		{"of headers that are not there", "v1.2 1\ntxt 2048 1 b.txt\n", shard("README=1 a="), opening},
		{"another record", indexText, shard(indexedShard + " c.txt=4"), opening},
		{"truncated", indexText, shard(indexedShard)[:3584+512], "error dataloader: OpenTar: shard … x.tar … truncated"},
		{"other names", indexText, shard("d/ d/A.txt=first d/A.Seg.PNG=1 b.txt= b.cls=2"), stale + "; " + stale},
		{"another size", indexText, shard("d/ d/a.txt=other! d/a.Seg.PNG=1 b.txt= b.cls=2"), stale + "; " + b},
		{"another order", indexText, shard("d/ d/a.txt=first d/a.Seg.PNG=1 b.cls= b.txt=2"), stale + "; " + stale},
		{"a link", indexText, shard("d/ d/a.txt=first d/a.Seg.PNG=1 b.txt= b.cls>b.txt c="), a + "; " + stale},
		{"folders elsewhere", indexText, shard("d/a.txt=first d/a.Seg.PNG=1 b.txt= b.cls=2 c/ c= c= c="), opening},
	} {
		same(t, c.name, indexed(t, onDisk(t, "x.tar", c.shard, c.index)), c.want)
	}
	// Names that do not fit into one header, in records of the same size.
	for _, prefix := range []string{"ä", strings.Repeat("x", 120)} {
		name := onDisk(t, "x.tar", tarEntries(prefix+"1.txt=1", prefix+"2.txt=2", prefix+"3.txt=3"))
		must(0, writeIndex(name))
		equal(t, "with an index", indexed(t, name), []string{prefix + "1{txt:1}", prefix + "2{txt:2}", prefix + "3{txt:3}"})
		must(0, os.WriteFile(name, tarEntries(prefix+"3.txt=3", prefix+"1.txt=1", prefix+"2.txt=2"), 0o666))
		same(t, "another order", indexed(t, name), stale+"; "+stale+"; "+stale)
	}
	// A shard that changes while it is open.
	data := must(OpenTar(name))
	defer data.Close()
	for _, change := range [][]byte{shard("e/ e/a.txt=first"), shard(indexedShard)[:1024]} {
		must(0, os.WriteFile(name, change, 0o666))
		saysAll(t, errorOf(data.Get(t.Context(), 0)), "the shard is not the one that was indexed", "x.tar")
	}
}

// TestTarIndexText shows what is wrong with an index, in errors that name the line.
func TestTarIndexText(t *testing.T) {
	shard := tarEntries(strings.Fields(indexedShard)...)
	for _, c := range []struct{ text, says string }{
		{"", `it begins with ""`}, {"v1.1 2\n", `"v1.1 2", must begin with "v1.2"`}, {"\x00\x00\x02\x00", "it begins with"},
		{"v1.2 x\n", "v1.2 x"}, {"v1.2 2", "0 lines of records, its first line says 2"}, {"v1.2 2\n\n\n", "line 2 has 0 words"},
		{"v1.2 3\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 3"},
		{"v1.2 0\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 0"},
		{"v1.2 1\ntxt 1024 5\n", "line 2 has 3 words"}, {"v1.2 1\ntxt 1024 5 d/a b.txt\n", "line 2 has 5 words"},
		{"v1.2 1\ntxt 1024 5 d/a.txt txt 2048 1 d/a.TXT\n", `line 2: record "d/a" has another field "txt"`},
		{"v1.2 2\ntxt 1024 5 d/a.txt\ncls 1024 5 b.cls\n", `line 3: "b.cls" has the offset 1024`},
		{"v1.2 2\ntxt 1024 5 d/a.txt\ncls 1536 1 b.cls\n",
			`line 3: "b.cls" has the offset 1536 and the size 1, which cannot be in a shard of 6144 bytes, after byte 1536`},
	} {
		same(t, c.text, indexed(t, onDisk(t, "x.tar", shard, c.text)), "error x.idx … "+c.says+" … without the index the shard itself is read")
	}
	for _, c := range [][2]string{
		{"1000", "5"}, {"0", "5"}, {"-512", "5"}, {"99999999999999999999", "5"}, {"x", "5"},
		{"1024", "-5"}, {"1024", "5121"}, {"1024", "9223372036854775807"}, {"1024", "x"},
	} {
		got := indexed(t, onDisk(t, "x.tar", shard, fmt.Sprintf("v1.2 1\ntxt %s %s d/a.txt\n", c[0], c[1])))
		same(t, "a number", got, fmt.Sprintf(`error x.idx … line 2: "d/a.txt" has the offset %s and the size %s`, c[0], c[1]))
	}
}

// TestTarWriteIndex shows what cannot be written, and that a failed write leaves no file.
func TestTarWriteIndex(t *testing.T) {
	for says, entries := range map[string][]string{
		`"a b.txt"`: {"a b.txt=1"}, `"a.cls"`: {"a.txt=1", "a.cls>a.txt"}, `"a."`: {"a.=1"}, "no records": {"README=1"}, "another field": {"a.txt=1", "a.txt=2"},
	} {
		saysAll(t, writeIndex(onDisk(t, "x.tar", tarEntries(entries...))), "dataloader: WriteIndex", "x.idx", says)
	}
	name := onDisk(t, "x.tar", tarEntries("a.txt=1"))
	data := must(OpenTar(name))
	defer data.Close()
	must(0, os.Mkdir(indexOf(name), 0o777)) // no file can take its name, nor be read by it
	saysAll(t, data.WriteIndex(), "x.idx")
	equal(t, "files", len(must(os.ReadDir(filepath.Dir(name)))), 2)
	same(t, "a folder as the index", indexed(t, name), "error x.idx … is a directory")
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
	long, image := strings.Repeat("long/", 60)+"ü", strings.Repeat("x", 1000)
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", []byte(image)}, {"__key__", nil}}},
		{Key: long, Files: []File{{"txt", nil}}},
		{Key: "__m__x", Files: []File{{"json", []byte("{}")}}},
	}
	var shards [2]bytes.Buffer
	for i := range shards {
		w := NewTarWriter(&shards[i])
		for _, r := range records {
			must(0, w.Write(r))
			slices.Reverse(r.Files)
		}
		must(0, w.Close())
		saysAll(t, w.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter", "after close")
	}
	equal(t, "the same bytes", bytes.Equal(shards[0].Bytes(), shards[1].Bytes()), true)
	want := "b{cls:2 txt:1}; " + briefRecord("./d/a", "__key__", "", "seg.png", image) + "; " + long + "{txt:}; __m__x{json:{}}"
	checkShard(t, TarOptions{}, shards[0].Bytes(), want, want)
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
	out.CloseWithError(errBad)
	w = NewTarWriter(in)
	saysAll(t, w.Write(Record{Key: "c", Files: []File{{"txt", nil}}}), "TarWriter", `record "c"`, "bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
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
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"},
		{"txt", "text", "string text"}, {"text", "text", "string text"}, {"a.transcript", "text", "string text"},
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
