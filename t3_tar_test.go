package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
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

// The tests of tar shards.

// tarEntries writes an archive of entries "name=content"; "name>target" is a hard link, "name@target" a symbolic one,
// and a name that ends in a slash a folder.
func tarEntries(entries ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Typeflag: tar.TypeReg, Mode: 0o444}
		i := strings.IndexAny(e, "=>@")
		content := ""
		switch {
		case i < 0:
			h.Name = e
			h.Typeflag = tar.TypeDir
		case e[i] == '=':
			h.Name, content = e[:i], e[i+1:]
		case e[i] == '>':
			h.Name, h.Linkname, h.Typeflag = e[:i], e[i+1:], tar.TypeLink
		case e[i] == '@':
			h.Name, h.Linkname, h.Typeflag = e[:i], e[i+1:], tar.TypeSymlink
		}
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		must(io.WriteString(w, content))
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// gzipped packs data.
func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must(w.Write(data))
	w.Close()
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

// tarOutcomes reads shards in memory, named 0, 1, …
func tarOutcomes(t testing.TB, opts TarOptions, shards ...[]byte) []string {
	t.Helper()
	all, names := map[string][]byte{}, []string{}
	for i, data := range shards {
		names = append(names, strconv.Itoa(i))
		all[names[i]] = data
	}
	opts.Open = inMemory(all)
	return outcomes(briefly(must(Tar(names, opts))).Epoch(t.Context(), 0))
}

// onDisk writes a shard into a folder of the test's.
func onDisk(t testing.TB, name string, data []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
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
		{[]string{"a.Seg.PNG=1"}, "a{seg.png:1}"},
		{[]string{"a/b.c.d=1"}, "a/b{c.d:1}"},
		{[]string{"a.x/b.txt=1"}, "a.x/b{txt:1}"},
		{[]string{"./a.txt=1"}, "./a{txt:1}"},
		{[]string{"a.=1"}, "a{:1}"},
		{[]string{"a..b=1"}, "a{.b:1}"},
		{[]string{"/some/22.0/1.1.png=1"}, "/some/22.0/1{1.png:1}"},
		{[]string{`a\b.txt=1`}, `a\b{txt:1}`},
		{[]string{".hidden=1", "./.hidden=1", "d/.hidden=1", "a.b/.hidden=1", "..a=1", "d/._a.txt=1", ".a.txt=1", "d/.b.txt=1"}, ""},
		{[]string{"__meta__=1", "__a.b__=1", "__m__/x.json=1"}, ""},
		{[]string{"__meta__.json=1", "d/__m__/x.json=2", "__/x.txt=3"}, "__meta__{json:1} d/__m__/x{json:2} __/x{txt:3}"},
		{[]string{"x.__key__=1", "x.__bad__=2"}, "x{__key__:1 __bad__:2}"},
		{[]string{"a.txt=", "a.cls="}, "a{txt: cls:}"},
		{[]string{"a.txt.gz=1"}, "a{txt.gz:1}"},
		{[]string{"../../etc/x.txt=1", "/abs/y.txt=2"}, "../../etc/x{txt:1} /abs/y{txt:2}"},
		{[]string{strings.Repeat("long/", 40) + "a.txt=1"}, strings.Repeat("long/", 40) + "a{txt:1}"},
		{[]string{strings.Repeat("long/", 60) + "ü.txt=1"}, strings.Repeat("long/", 60) + "ü{txt:1}"},
		{nil, ""},
	} {
		data := tarEntries(c.entries...)
		equal(t, fmt.Sprint(c.entries), strings.Join(tarOutcomes(t, TarOptions{}, data), " "), c.want)
		equal(t, fmt.Sprint("indexed ", c.entries), strings.Join(indexed(t, onDisk(t, "x.tar", data)), " "), c.want)
	}
	// Records do not span shards; a shard may come twice.
	one, two := tarEntries("a.txt=1"), tarEntries("a.cls=2")
	equal(t, "two shards", tarOutcomes(t, TarOptions{}, one, two, one), []string{"a{txt:1}", "a{cls:2}", "a{txt:1}"})
	// An empty file is a field, a missing one is not.
	for r := range must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": tarEntries("a.txt=")})})).Epoch(t.Context(), 0) {
		if r.Get("txt") == nil || r.Get("cls") != nil || r.Shard != "x" {
			t.Errorf("txt %v, cls %v, shard %q", r.Get("txt"), r.Get("cls"), r.Shard)
		}
	}
}

func TestTarFields(t *testing.T) {
	data := tarEntries("a.png=1", "a.cls=2", "b.png=3", "c.cls=4", "c.big="+strings.Repeat("x", 100))
	equal(t, "png", tarOutcomes(t, TarOptions{Fields: []string{"png"}}, data), []string{"a{png:1}", "b{png:3}", "c{}"})
	equal(t, "not read", tarOutcomes(t, TarOptions{Fields: []string{"CLS", "png"}, MaxFile: 10}, data), []string{"a{png:1 cls:2}", "b{png:3}", "c{cls:4}"})
	equal(t, "none", tarOutcomes(t, TarOptions{Fields: []string{}}, data), []string{"a{}", "b{}", "c{}"})

	// What is not wanted is not even read, if the file can seek.
	large := tarEntries("a.big="+strings.Repeat("x", 5<<20), "a.cls=1", "b.big="+strings.Repeat("x", 5<<20), "b.cls=2")
	file := &countingFile{Reader: bytes.NewReader(large)}
	opts := TarOptions{Fields: []string{"cls"}, Open: func(context.Context, string, int64) (io.ReadCloser, error) { return file, nil }}
	equal(t, "seeking", outcomes(briefly(must(Tar([]string{"x"}, opts))).Epoch(t.Context(), 0)), []string{"a{cls:1}", "b{cls:2}"})
	if file.read > 4*tarBuffer || !file.closed {
		t.Errorf("%d bytes of %d were read; closed %t", file.read, len(large), file.closed)
	}
}

// A countingFile counts the bytes that are read.
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

// TestTarFaults has every fault of a shard, with a sound shard after it: the records before the fault come, then one
// error, then the next shard. Peers lose most of these in silence.
func TestTarFaults(t *testing.T) {
	sound := tarEntries("a.txt=first", "a.cls=1", "b.txt="+strings.Repeat("second", 200), "b.cls=2", "c.txt=third", "c.cls=3")
	// a.txt is at 0, a.cls at 1024, b.txt at 2048, b.cls at 4096, c.txt at 5120, c.cls at 6144, the end at 7168
	a, b, c := "a{txt:first cls:1}", brief(Record{Key: "b", Files: []File{{"txt", []byte(strings.Repeat("second", 200))}, {"cls", []byte("2")}}}), "c{txt:third cls:3}"
	with := func(at int, bytes string) []byte {
		data := slices.Clone(sound)
		copy(data[at:], bytes)
		return data
	}
	resum := func(data []byte, at int) []byte {
		header := data[at : at+512]
		copy(header[148:], "        ")
		sum := 0
		for _, c := range header {
			sum += int(c)
		}
		copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
		return data
	}
	packed := gzipped(sound)
	flipped := slices.Clone(packed)
	flipped[len(flipped)-6] ^= 1 // the checksum
	halves := append(gzipped(sound[:3000]), gzipped(sound[3000:])...)
	type fault struct {
		name string
		data []byte
		want []string // records
		says []string // of the error
	}
	for _, f := range []fault{
		{"sound", sound, []string{a, b, c}, nil},
		{"half an end marker", sound[:7168+512], []string{a, b, c}, nil},
		{"gzip", packed, []string{a, b, c}, nil},
		{"two gzip members", halves, []string{a, b, c}, nil},
		{"no end marker", sound[:7168], []string{a, b}, []string{"end marker", `entry "c.cls"`, "offset 7168", `record "c", which may lack files, is left out`}},
		{"cut between records", sound[:5120], []string{a}, []string{"end marker", `entry "b.cls"`, "offset 5120", `record "b", which may lack files`}},
		{"cut between files", sound[:4096], []string{a}, []string{"end marker", `entry "b.txt"`, `record "b"`}},
		{"cut in data", sound[:3000], []string{a}, []string{"unexpected EOF", `entry "b.txt"`, "offset 2048", `record "b"`}},
		{"cut in padding", sound[:7000], []string{a, b}, []string{"unexpected EOF", `entry "c.cls"`, `record "c"`}},
		{"cut in a header", sound[:5120+100], []string{a}, []string{"it has been cut", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"cut after the first header", sound[:512], nil, []string{"unexpected EOF", `entry "a.txt"`, `record "a"`}},
		{"cut in an end marker", sound[:7168+700], []string{a, b}, []string{"unexpected EOF", `record "c"`}},
		{"bad checksum", with(5120+10, "x"), []string{a}, []string{"the headers that come next: archive/tar: invalid tar header", `entry "b.cls"`, "offset 5120", `record "b"`}},
		{"bad number", resum(with(5120+108, "zzzz"), 5120), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"a block of zeros inside", with(5120, strings.Repeat("\x00", 512)), []string{a}, []string{"invalid tar header", "offset 5120"}},
		{"two archives", append(slices.Clone(sound), sound...), []string{a, b, c}, []string{"after the end marker"}},
		{"4 EiB", resum(with(5120+124, "\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"), 5120), []string{a, b}, []string{`entry "c.txt"`, "4611686018427387904 bytes make the record larger than MaxFile, 1073741824"}},
		{"2^63-1 bytes", resum(with(5120+124, "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"), 5120), []string{a, b}, []string{`entry "c.txt"`, "9223372036854775807 bytes"}},
		{"negative size", resum(with(5120+124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 5120), []string{a}, []string{"invalid tar header"}},
		{"a bad record, and a cut", tarEntries("a.txt=first", "a.cls=1", "b.txt=", "b.txt=")[:3072], []string{"a{txt:first cls:1}"}, []string{`has another field "txt"`, "has been cut", `record "b"`}},
		{"no bytes", nil, nil, []string{"the archive is empty", `shard "0"`}},
		{"no bytes in gzip", gzipped(nil), nil, []string{"the archive is empty"}},
		{"a page", []byte("<!DOCTYPE html>" + strings.Repeat("<p>Not found</p>", 100)), nil, []string{"invalid tar header"}},
		{"a short page", []byte("<!DOCTYPE html>"), nil, []string{"it has been cut"}},
		{"gzip cut", packed[:len(packed)/2], nil, []string{"unexpected EOF", `record "a"`}},
		{"gzip cut at its end", packed[:len(packed)-4], []string{a, b, c}, []string{"unexpected EOF"}},
		{"gzip flipped", flipped, []string{a, b, c}, []string{"gzip: invalid checksum"}},
		{"gzip and more", append(slices.Clone(packed), "and something more"...), []string{a, b, c}, []string{"gzip: invalid header"}},
		{"two packed archives", append(slices.Clone(packed), packed...), []string{a, b, c}, []string{"after the end marker"}},
		{"no gzip", []byte("\x1f\x8b"), nil, []string{"EOF"}},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), nil, []string{"xz"}},
		{"zstd", []byte("\x28\xb5\x2f\xfd\x04"), nil, []string{"zstd"}},
	} {
		t.Run(f.name, func(t *testing.T) {
			next := tarEntries("c.cls=4", "d.cls=5")
			got := tarOutcomes(t, TarOptions{}, f.data, next)
			want := append(slices.Clone(f.want), "c{cls:4}", "d{cls:5}")
			if f.says != nil {
				if len(got) != len(want)+1 {
					t.Fatalf("got %q", got)
				}
				saysAll(t, errors.New(got[len(f.want)]), f.says...)
				got = slices.Delete(got, len(f.want), len(f.want)+1)
			}
			equal(t, "records", got, want)
			opts := TarOptions{Open: inMemory(map[string][]byte{"0": f.data, "1": next})}
			stream := must(Tar([]string{"0", "1"}, opts))
			checkStream(t, briefly(stream), 0)
			for _, err := range stream.Epoch(t.Context(), 0) {
				if e := (*TarError)(nil); err != nil && (!errors.As(err, &e) || e.Shard != "0") {
					t.Errorf("no TarError: %v", err)
				}
			}
			if plain := f.data == nil || !strings.HasPrefix(string(f.data), "\x1f"); plain {
				if got := indexed(t, onDisk(t, "x.tar", f.data)); f.says == nil {
					equal(t, "indexed", got, f.want)
				} else if e := got[len(got)-1]; !strings.HasPrefix(e, "error") {
					t.Errorf("OpenTar gives %q", got)
				}
			}
		})
	}
}

// TestTarBadRecords has faults of one record, after which the shard is read on.
func TestTarBadRecords(t *testing.T) {
	for _, c := range []struct {
		entries       []string
		says, indexed string
	}{
		{[]string{"b.txt=1", "b.cls=2", "b.TXT=3", "b.png=4"}, `entry "b.TXT", offset 4096: record "b" has another field "txt"`, "error"},
		{[]string{"b.txt=1", "b.cls>a.txt", "b.png=4"}, `entry "b.cls", offset 3072: it is a hard link to "a.txt"`, "b{txt:1 cls:first png:4}"},
		{[]string{"b.txt>a.txt", "b.cls>b.txt"}, `it is a hard link to "a.txt"`, "b{txt:first cls:first}"},
		{[]string{"b.txt=1", "b.cls>c.txt", "b.png=4"}, `it is a hard link to "c.txt"`, "error"},
		{[]string{"b.txt=" + strings.Repeat("x", 6), "b.cls=" + strings.Repeat("y", 5), "b.png="}, "its 5 bytes make the record larger than MaxFile, 10", "b{txt:xxxxxx cls:yyyyy png:}"},
		{[]string{"b.txt=" + strings.Repeat("x", 11)}, "its 11 bytes make the record larger than MaxFile, 10", "b{txt:xxxxxxxxxxx}"},
	} {
		data := tarEntries(slices.Concat([]string{"a.txt=first", "a.cls=1"}, c.entries, []string{"c.txt=third"})...)
		got := tarOutcomes(t, TarOptions{MaxFile: 10}, data)
		if len(got) != 3 {
			t.Fatalf("%q: %q", c.entries, got)
		}
		saysAll(t, errors.New(got[1]), c.says)
		equal(t, "the others", []string{got[0], got[2]}, []string{"a{txt:first cls:1}", "c{txt:third}"})
		got = indexed(t, onDisk(t, "x.tar", data))
		if len(got) != 3 || !strings.HasPrefix(got[1], c.indexed) {
			t.Errorf("indexed %q: %q", c.entries, got)
		}
		checkStream(t, briefly(must(Tar([]string{"x"}, TarOptions{MaxFile: 10, Open: inMemory(map[string][]byte{"x": data})}))), 1)
	}
}

// An entry is one of an archive, as archive/tar and this package's reader see it.
type archiveEntry struct {
	name    string
	kind    byte
	content string
}

// archiveTar reads an archive with archive/tar. cut says that it was content although there is no end marker.
func archiveTar(data []byte, maxFile int64) (all []archiveEntry, err error) {
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		e := archiveEntry{name: h.Name}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
			e.kind = tar.TypeReg
			if h.Size <= maxFile {
				content := make([]byte, h.Size)
				if _, err := io.ReadFull(r, content); err != nil {
					return all, err
				}
				e.content = string(content)
				if _, err := io.Copy(io.Discard, r); err != nil { // there is more than the file should have
					return append(all, e), err
				}
			} else if h.PAXRecords["GNU.sparse.realsize"] != "" || h.PAXRecords["GNU.sparse.size"] != "" || h.Typeflag == tar.TypeGNUSparse {
				return all, errors.New("too large to be read over")
			}
		case tar.TypeLink:
			e.kind, e.content = tar.TypeLink, h.Linkname
		}
		all = append(all, e)
	}
}

// thisReader reads an archive entry by entry with the reader of Tar and OpenTar.
func thisReader(data []byte, maxFile int64) (all []archiveEntry, err error) {
	s := &tarReader{in: bufio.NewReaderSize(bytes.NewReader(data), 1<<10), max: maxFile}
	for {
		err := s.entry()
		if err == io.EOF {
			err = s.drain()
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		e := archiveEntry{name: s.at.name, kind: s.at.kind}
		if e.kind == tar.TypeLink {
			e.content = s.at.link
		} else if e.kind == tar.TypeReg && s.at.size <= maxFile {
			content, err := s.content()
			if err != nil {
				return all, err
			}
			e.content = string(content)
		}
		all = append(all, e)
	}
}

// compareReaders checks that the two agree on every entry of an archive, and that this one reports every error of
// archive/tar. It may report more: archives that are cut on a boundary, and data after the end marker.
func compareReaders(t testing.TB, data []byte, maxFile int64) {
	t.Helper()
	want, wantErr := archiveTar(data, maxFile)
	got, err := thisReader(data, maxFile)
	if err == nil && wantErr != nil {
		t.Fatalf("archive/tar reports %v", wantErr)
	}
	if err != nil && wantErr == nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "end marker") && !strings.Contains(err.Error(), "is empty") {
		t.Fatalf("archive/tar reports nothing, this reader %v", err)
	}
	if len(got) > len(want) || err == nil && len(got) < len(want) || len(got) < len(want)-1 {
		t.Fatalf("%d entries and %v, archive/tar has %d and %v", len(got), err, len(want), wantErr)
	}
	for i, e := range got {
		if e.kind == 0 { // the name of a damaged global header is a different one each time that archive/tar reads it
			e.name = want[i].name
		}
		if e != want[i] {
			t.Fatalf("entry %d is %.200q, archive/tar has %.200q", i, e, want[i])
		}
	}
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
			data, err := os.ReadFile(name)
			if base, ok := strings.CutSuffix(name, ".base64"); ok && err == nil {
				name = base
				data, err = base64.StdEncoding.DecodeString(string(data))
			}
			if err != nil {
				t.Fatal(err)
			}
			all[prefix+filepath.Base(name)] = data
		}
	}
	return all
}

// unpacked returns an archive without its compression, read by other means than the package's.
func unpacked(t testing.TB, data []byte) []byte {
	for magic, open := range map[string]func(io.Reader) (io.Reader, error){
		"\x1f\x8b": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"BZh":      func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil },
	} {
		if strings.HasPrefix(string(data), magic) {
			data = must(io.ReadAll(must(open(bytes.NewReader(data)))))
		}
	}
	return data
}

// TestTarArchives reads every archive in three ways, archive/tar's among them.
func TestTarArchives(t *testing.T) {
	all := archives(t)
	if len(all) < 23 {
		t.Fatalf("only %d archives", len(all))
	}
	for name, data := range all {
		t.Run(name, func(t *testing.T) {
			plain := unpacked(t, data)
			compareReaders(t, plain, 1<<24)
			opts := TarOptions{MaxFile: 1 << 24, Open: inMemory(map[string][]byte{name: data})}
			stream := briefly(must(Tar([]string{name}, opts)))
			got := checkStream(t, stream, 0)

			want, wantErr := archiveTar(plain, 1<<24)
			var files, read []string
			linked := map[string]bool{}
			for _, e := range want {
				key, _, _ := splitName(e.name)
				linked[key] = linked[key] || e.kind == tar.TypeLink
			}
			for _, e := range want {
				if key, field, ok := splitName(e.name); ok && e.kind == tar.TypeReg && !linked[key] {
					files = append(files, brief(Record{Key: key, Files: []File{{field, []byte(e.content)}}}))
				}
			}
			failed := false
			for r, err := range must(Tar([]string{name}, opts)).Epoch(t.Context(), 0) {
				failed = failed || err != nil
				for _, f := range r.Files {
					read = append(read, brief(Record{Key: r.Key, Files: []File{f}}))
				}
			}
			if wantErr != nil && !failed {
				t.Errorf("archive/tar reports %v, Tar gives %q", wantErr, got)
			}
			if failed {
				files = files[:len(read)] // the last record may be missing
			}
			equal(t, "files", read, files)
			if again := indexed(t, onDisk(t, "x.tar", plain)); !failed {
				equal(t, "indexed", again, got)
			} else if !slices.ContainsFunc(again, func(s string) bool { return strings.HasPrefix(s, "error") }) && !strings.Contains(fmt.Sprint(got), "hard link") {
				t.Errorf("Tar gives %q, OpenTar %q", got, again)
			}
		})
	}
}

// TestTarGNU has what is in the archives of testdata/tar, in every format that GNU tar writes.
func TestTarGNU(t *testing.T) {
	b := brief(Record{Key: "b", Files: []File{{"cls", []byte("2")}, {"txt", []byte(strings.Repeat("second\n", 100))}}})
	base := []string{"a{cls:1 txt:first\n}", b, "c{cls:3 txt:}"}
	long := strings.Repeat("bb-folder-number-000%d/", 7)
	for i := range 7 {
		long = strings.Replace(long, "%d", strconv.Itoa(i+1), 1)
	}
	with := func(record string) []string { return slices.Insert(slices.Clone(base), 2, record) }
	holes := func(size int, pieces map[int]string) []byte {
		data := make([]byte, size)
		for at, piece := range pieces {
			copy(data[at:], piece)
		}
		return data
	}
	pieces := map[int]string{}
	for i := range 30 {
		pieces[(i+1)*10000] = fmt.Sprintf("piece %02d", i+1)
	}
	sparse := []string{base[0],
		brief(Record{Key: "s", Files: []File{{"bin", holes(100000, map[int]string{5115: "one piece", 70000: "another piece"})}, {"cls", []byte("8")}}}),
		"t{cls:9 txt:after the holes\n}",
		brief(Record{Key: "u", Files: []File{{"bin", holes(300008, pieces)}, {"cls", []byte("10")}}})}
	links := []string{base[0], "b{cls:2 txt:first\n}", "c{cls:3}", "d/x{cls:7 txt:x\n}"}
	dump := make([]string, len(base))
	for i, r := range base {
		dump[i] = "dump/" + r
	}
	for name, want := range map[string][]string{
		"v7": base, "oldgnu": base, "gnu": base, "ustar": base, "posix": base, "posix-global": base,
		"gzip": base, "bzip2": base, "members": base, "dumpdir": dump,
		"gnu-long": with(long + "long-name{cls:4 txt:long\n}"), "oldgnu-long": with(long + "long-name{cls:4 txt:long\n}"),
		"ustar-prefix": with(long + "long-name{cls:4 txt:long\n}"), "posix-long": with(long + long + "long-name{cls:5 txt:longer\n}"),
		"gnu-utf8": {base[0], "größe/日本{cls:6 txt:größe\n}"}, "posix-utf8": {base[0], "größe/日本{cls:6 txt:größe\n}"},
		"gnu-sparse": sparse, "posix-sparse-0.0": sparse, "posix-sparse-0.1": sparse, "posix-sparse-1.0": sparse,
		"gnu-links": links, "posix-links": links,
	} {
		name = "testdata/tar/" + name + ".tar"
		stream := must(Tar([]string{name}, TarOptions{}))
		got := outcomes(briefly(stream).Epoch(t.Context(), 0))
		packed := strings.Contains("gzip bzip2 members", strings.TrimSuffix(filepath.Base(name), ".tar"))
		if &want[0] == &links[0] {
			saysAll(t, errors.New(got[1]), name, `entry "b.txt"`, `it is a hard link to "a.txt"`)
			got[1] = want[1]
		}
		equal(t, name, got, want)
		if again := indexed(t, name); packed {
			saysAll(t, errors.New(again[0]), name, "it is packed")
		} else {
			equal(t, name+" indexed", again, want)
		}
	}
	for name, says := range map[string]string{"xz": "packed with xz", "zstd": "packed with zstd"} {
		name = "testdata/tar/" + name + ".tar"
		saysAll(t, errors.New(outcomes(must(Tar([]string{name}, TarOptions{})).Epoch(t.Context(), 0))[0]), name, says, "gzip")
		saysAll(t, errors.New(indexed(t, name)[0]), name, says)
	}
}

// TestParseHeader has the headers that the fast path must take, or must leave to archive/tar.
func TestParseHeader(t *testing.T) {
	all := archives(t)
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix-global"} {
		data := all[format+".tar"]
		if format == "posix-global" {
			data = data[1024:]
		}
		name, size, ok := parseHeader(data[:512])
		equal(t, format, fmt.Sprint(name, size, ok), "a.cls1 true")
	}
	name, size, ok := parseHeader(all["ustar-prefix.tar"][:512])
	equal(t, "ustar", fmt.Sprint(name, size, ok), "a.cls1 true")
	header := all["ustar.tar"][:512]
	for at, bytes := range map[int]string{0: "a", 100: "0000644x", 108: "x", 116: "9", 124: "\x80", 136: "-1", 156: "5", 329: "x", 337: "x", 508: "tar\x00"} {
		changed := slices.Clone(header)
		copy(changed[at:], bytes)
		copy(changed[148:], fmt.Sprintf("%06o\x00 ", checksum(changed)))
		if _, _, ok := parseHeader(changed); ok != (at == 0) {
			t.Errorf("with %q at %d: %t", bytes, at, ok)
		}
		changed[148] ^= 1
		if _, _, ok := parseHeader(changed); ok {
			t.Errorf("with %q at %d and another sum", bytes, at)
		}
	}
}

// FuzzTar (which -fuzzminimizetime 10x makes faster) reads arbitrary bytes as a shard. There is always an end, nothing panics, no more memory is taken than MaxFile for a
// file, archive/tar agrees, and a resume after every record gives the rest.
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
		var want []string
		var cursors []Cursor
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for item, err := range stream(t.Context(), Cursor{}) {
			want = append(want, outcomes(one(item.Value, err))...)
			cursors = append(cursors, item.Next)
		}
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

// serveTar starts a server whose answer to the n-th request, from 1 on, is up to answer.
func serveTar(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *tarServer {
	s := &tarServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.Close {
			t.Error("the connection is to be kept")
		}
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("asked for the encoding %q", r.Header.Get("Accept-Encoding"))
		}
		s.mu.Lock()
		s.asked = append(s.asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Range")))
		n := len(s.asked)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	s.web = web{s.Client(), 6, time.Minute, func(_ context.Context, d time.Duration) error {
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

// records are the outcomes of the shard that the server has, and of another that is sound.
func (s *tarServer) records(t *testing.T, path string) []string {
	after := inMemory(map[string][]byte{"after": tarEntries("z.txt=after")})
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		if name == "after" {
			return after(ctx, name, offset)
		}
		return s.web.connect(ctx, name, offset)
	}
	return outcomes(briefly(must(Tar([]string{path, "after"}, TarOptions{Open: open}))).Epoch(t.Context(), 0))
}

// object is an answer with data, as servers give it, which breaks off after limit bytes unless that is negative.
func object(w http.ResponseWriter, r *http.Request, data []byte, tag string, limit int) {
	w.Header().Set("ETag", tag)
	if limit >= 0 {
		w = &breaking{w, limit}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// A breaking answer ends with the connection.
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

// TestWeb reads a shard from servers that behave badly, each in its own way. Every record comes exactly once, or the
// shard ends in an error.
func TestWeb(t *testing.T) {
	var entries []string
	var all []string
	for i := range 100 {
		entries = append(entries, fmt.Sprintf("%d.txt=%d", i, i), fmt.Sprintf("%d.bin=%s", i, strings.Repeat("x", 7*i)))
		all = append(all, brief(Record{Key: strconv.Itoa(i), Files: []File{{"txt", []byte(strconv.Itoa(i))}, {"bin", []byte(strings.Repeat("x", 7*i))}}}))
	}
	data := tarEntries(entries...) // of about 150 kB
	all = append(all, "z{txt:after}")
	other := slices.Clone(data)
	const tag = `"one"`
	for _, c := range []struct {
		name   string
		answer func(n int, w http.ResponseWriter, r *http.Request)
		asked  int    // so often
		says   string // the error, unless there is none
	}{
		{"good", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, tag, -1) }, 1, ""},
		{"breaks all the time", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, tag, 16000) }, (len(data) + 15999) / 16000, ""},
		{"breaks, and has no ranges", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			object(w, r, data, tag, 30000*n)
		}, (len(data) + 29999) / 30000, ""},
		{"breaks without a length", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			w = &breaking{w, 60000 * n}
			for part := range slices.Chunk(data, 1000) {
				w.Write(part)
			}
		}, (len(data) + 59999) / 60000, ""},
		{"breaks, and never gets further", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			object(w, r, data, tag, 30000)
		}, 6, "attempt 6: unexpected EOF"},
		{"not yet", func(n int, w http.ResponseWriter, r *http.Request) {
			if status := []int{503, 408, 429, 500, 504}; n <= len(status) {
				w.Header().Set("Retry-After", "100")
				w.WriteHeader(status[n-1])
				return
			}
			object(w, r, data, tag, -1)
		}, 6, ""},
		{"never", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, 6, "attempt 6: 503 Service Unavailable"},
		{"no connection", func(n int, w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 6, "attempt 6: EOF"},
		{"not found", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) }, 1, "404 Not Found"},
		{"forbidden", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, 1, "403 Forbidden"},
		{"forbidden later", func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				object(w, r, data, tag, 30000)
				return
			}
			w.WriteHeader(403)
		}, 2, "403 Forbidden"},
		{"nothing", func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }, 1, "204 No Content"},
		{"changes its tag", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, other, fmt.Sprintf(`"%d"`, n), 30000)
		}, 2, "has changed"},
		{"changes its tag, and does not look", func(n int, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Range")
			object(w, r, other, fmt.Sprintf(`"%d"`, n), 30000)
		}, 2, "has changed"},
		{"changes its date", func(n int, w http.ResponseWriter, r *http.Request) {
			http.ServeContent(&breaking{w, 30000}, r, "", time.Unix(int64(n), 0), bytes.NewReader(other))
		}, 2, "has changed"},
		{"changes its length", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, data[:len(data)-n], "", 30000)
		}, 2, "has changed"},
		{"has a weak tag", func(n int, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Range") != "" {
				t.Error("a weak tag in If-Range")
			}
			object(w, r, data, `W/"one"`, 40000)
		}, (len(data) + 39999) / 40000, ""},
		{"changes its weak tag", func(n int, w http.ResponseWriter, r *http.Request) {
			object(w, r, other, fmt.Sprintf(`W/"%d"`, n), 30000)
		}, 2, "has changed"},
		{"breaks before the first byte", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 6, "attempt 6: unexpected EOF"},
		{"changes before the first byte", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n))
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 2, "has changed"},
		{"points to nowhere", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://user:secret@host:bad/x?sig=secret")
			w.WriteHeader(302)
		}, 1, "something that is not an address"},
		{"promises more than it has", func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				w.WriteHeader(416)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)+1000))
			w.Write(data)
		}, 2, "416"},
		{"is cut on the server", func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data[:20480], tag, -1) }, 1, "unexpected EOF"},
		{"gives another range", func(n int, w http.ResponseWriter, r *http.Request) {
			if n > 1 {
				r.Header.Set("Range", "bytes=5-")
			}
			object(w, r, data, tag, 30000)
		}, 2, `answers with the range "bytes 5-`},
		{"gives short ranges", func(n int, w http.ResponseWriter, r *http.Request) {
			if from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
				first := must(strconv.Atoi(strings.TrimSuffix(from, "-")))
				r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+29999))
				object(w, r, data, tag, -1)
				return
			}
			object(w, r, data, tag, 30000)
		}, (len(data) + 29999) / 30000, ""},
		{"packs on the way", func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			object(w, r, gzipped(data), tag, -1)
		}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serveTar(t, c.answer)
			got := s.records(t, s.URL+"/x.tar")
			equal(t, "requests", len(s.requests()), c.asked)
			if c.says == "" {
				equal(t, "records", got, all)
				return
			}
			n := len(got) - 2
			if n < 0 {
				t.Fatalf("got %q", got)
			}
			equal(t, "records before the error", got[:n], all[:n])
			if saysAll(t, errors.New(got[n]), "/x.tar", c.says); strings.Contains(got[n], "secret") {
				t.Error(got[n])
			}
			equal(t, "the next shard", got[n+1], "z{txt:after}")
		})
	}
}

func TestWebRequests(t *testing.T) {
	data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt="+strings.Repeat("y", 5000))
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 2 {
			w.Header().Set("Retry-After", "100")
			w.WriteHeader(429)
			return
		}
		object(w, r, data, `"tag"`, 4000)
	})
	got := s.records(t, s.URL)
	equal(t, "records", len(got), 3)
	equal(t, "requests", s.requests(), []string{"", `bytes=4000- "tag"`, `bytes=4000- "tag"`, `bytes=8000- "tag"`, `bytes=12000- "tag"`})
	for i, want := range []time.Duration{time.Second, 100 * time.Second, time.Second, time.Second} {
		if d := s.waits[i]; d > want || d < want/2 {
			t.Errorf("wait %d is %v, want %v or up to a half less", i, d, want)
		}
	}

	// A date to come back at.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			w.Header().Set("Retry-After", time.Now().Add(100*time.Second).UTC().Format(http.TimeFormat))
			w.WriteHeader(503)
			return
		}
		object(w, r, data, `"tag"`, -1)
	})
	equal(t, "records", len(s.records(t, s.URL)), 3)
	if d := s.waits[0]; d <= time.Second || d > 101*time.Second { // the time since then is off
		t.Errorf("a wait of %v", d)
	}

	// After Close nothing is asked for.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, data, `"tag"`, 6000) })
	r := must(s.web.connect(t.Context(), s.URL, 0))
	r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, os.ErrClosed) || len(s.requests()) != 1 {
		t.Errorf("after Close: %v, %d requests", err, len(s.requests()))
	}

	// Waits grow, until they do not.
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
	s.web.attempts = 10
	s.records(t, s.URL)
	for i, d := range s.waits {
		if want := min(time.Second<<i, 30*time.Second); d > want || d < want/2 {
			t.Errorf("wait %d is %v, want %v or up to a half less", i, d, want)
		}
	}

	// A resume asks for what follows the cursor, but of a packed shard for all.
	for _, packed := range []bool{false, true} {
		body := data
		if packed {
			body = gzipped(data)
		}
		s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) { object(w, r, body, `"tag"`, -1) })
		stream := must(Tar([]string{s.URL}, TarOptions{Open: s.web.connect}))
		for item := range stream(t.Context(), Cursor{}) {
			got := outcomes(briefly(stream).Run(t.Context(), ptr(throughJSON(t, item.Next))))
			equal(t, "the rest", got, []string{brief(Record{Key: "b", Files: []File{{"txt", []byte(strings.Repeat("y", 5000))}}})})
			break
		}
		equal(t, "requests", s.requests(), [][]string{{"", "bytes=5632-"}, {"", ""}}[map[bool]int{true: 1}[packed]])
	}

	// A context that ends while the server is waited for ends the stream.
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	s = serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.Write(data[:6000])
		w.(http.Flusher).Flush()
		cancel(stopped)
		<-r.Context().Done()
	})
	var last error
	for item, err := range must(Tar([]string{s.URL, "y"}, TarOptions{Open: s.web.connect}))(ctx, Cursor{}) {
		if last = err; err != nil && !item.Next.isZero() {
			t.Errorf("%v is not the last pair", err)
		}
	}
	if last != stopped {
		t.Errorf("ended with %v", last)
	}
}

// TestWebStall has a server that stops in the middle, in fake time, over a network in memory.
func TestWebStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := tarEntries("a.txt="+strings.Repeat("x", 5000), "b.txt=2")
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
				asked = append(asked, r.Header.Get("Range"))
				n := len(asked)
				mu.Unlock()
				switch n {
				case 1: // after some bytes
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(data), data[:3000])
				case 2: // before the first
				case 10:
					fmt.Fprintf(server, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(data), data)
				default:
					fmt.Fprintf(server, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3000-%d/%d\r\nContent-Length: %d\r\n\r\n%s", len(data)-1, len(data), len(data)-3000, data[3000:])
				}
				io.Copy(io.Discard, server) // until the client goes
			}()
			return client, nil
		}}
		defer transport.CloseIdleConnections()
		w := web{client: &http.Client{Transport: transport}, attempts: 6, stall: time.Minute, wait: pause}
		start := time.Now()
		got := collect(t, briefly(must(Tar([]string{"http://x/y.tar"}, TarOptions{Open: w.connect}))).Epoch(t.Context(), 0))
		equal(t, "records", len(got), 2)
		mu.Lock()
		equal(t, "requests", asked, []string{"", "bytes=3000-", "bytes=3000-"})
		if d := time.Since(start); d < 2*time.Minute || d > 2*time.Minute+3*time.Second {
			t.Errorf("it took %v, want two stalls of a minute and two waits, of a second and of two", d)
		}

		// A caller that takes its time is no stall.
		asked, data = make([]string, 9), tarEntries("a.bin="+strings.Repeat("x", 3*tarBuffer), "b.bin="+strings.Repeat("x", 3*tarBuffer))
		mu.Unlock()
		records := 0
		for _, err := range must(Tar([]string{"http://x/y.tar"}, TarOptions{Open: w.connect})).Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			records++
			time.Sleep(time.Hour)
		}
		mu.Lock()
		equal(t, "records and requests", []int{records, len(asked)}, []int{2, 10})
		mu.Unlock()
	})
}

// TestSecrets looks for what an address should not tell in every error there is.
func TestSecrets(t *testing.T) {
	s := serveTar(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.URL.RawQuery != "sig=secret" {
			t.Errorf("asked as %q with %q and %q", user, password, r.URL.RawQuery)
		}
		w.WriteHeader(404)
	})
	address := strings.Replace(s.URL, "http://", "http://user:secret@", 1) + "/x.tar?sig=secret#secret"
	for _, name := range []string{address, "http://user:secret@127.0.0.1:1/x.tar?sig=secret", "http://user:secret@127.0.0.1:secret/x.tar", "http://user:sec%ret@x/", "s3://user:secret@bucket/x.tar?sig=secret"} {
		s.web.attempts = 1
		got := outcomes(must(Tar([]string{name}, TarOptions{Open: s.web.connect})).Epoch(t.Context(), 0))
		if len(got) != 1 || !strings.HasPrefix(got[0], "error") || strings.Contains(got[0], "secret") || strings.Contains(got[0], "sec%") {
			t.Errorf("%s: %q", name, got)
		}
	}
	saysAll(t, errors.New(outcomes(must(Tar([]string{"s3://bucket/x.tar"}, TarOptions{})).Epoch(t.Context(), 0))[0]), "s3://bucket/x.tar", "http and https", "Opener")
}

func TestTarOptions(t *testing.T) {
	open := inMemory(nil)
	for _, c := range []struct {
		shards []string
		opts   TarOptions
		says   []string
	}{
		{nil, TarOptions{}, []string{"Tar", "no shards"}},
		{[]string{"a", ""}, TarOptions{}, []string{"shard 1 has an empty name"}},
		{[]string{"a", "b"}, TarOptions{Shard: Shard{0, 3}}, []string{"2 shards are too few for 3 ranks", "Stream.Shard"}},
		{[]string{"a", "b"}, TarOptions{Shard: Shard{2, 2}}, []string{"Tar", "Index: 2", "0 to 1"}},
		{[]string{"a"}, TarOptions{MaxFile: -1}, []string{"MaxFile is -1", "must not be negative"}},
	} {
		c.opts.Open = open
		s, err := Tar(c.shards, c.opts)
		if s != nil {
			t.Errorf("%q: a stream in spite of %v", c.shards, err)
		}
		saysAll(t, err, c.says...)
	}
}

// TestTarShards deals shards out to ranks, each epoch in its own order.
func TestTarShards(t *testing.T) {
	shards, names := map[string][]byte{}, []string{}
	for i := range 10 {
		names = append(names, fmt.Sprintf("%d.tar", i))
		shards[names[i]] = tarEntries(fmt.Sprintf("%da.txt=", i), fmt.Sprintf("%db.txt=", i))
	}
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
	for seed := range 3 {
		for epoch := range 3 {
			shuffled := keys(TarOptions{Shuffle: true, Seed: uint64(seed)}, epoch)
			var want, dealt []string
			for pos := range 10 {
				i := Random(10, uint64(seed)).Order(epoch)(pos)
				want = append(want, fmt.Sprintf("%da", i), fmt.Sprintf("%db", i))
			}
			equal(t, "shuffled", shuffled, want)
			seen[fmt.Sprint(shuffled)] = true
			for rank := range 3 {
				part := keys(TarOptions{Shuffle: true, Seed: uint64(seed), Shard: Shard{rank, 3}}, epoch)
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
	if len(seen) != 9 {
		t.Errorf("%d orders in 3 epochs of 3 seeds", len(seen))
	}
	checkStream(t, briefly(must(Tar(names, TarOptions{Shuffle: true, Seed: 1, Shard: Shard{1, 2}, Open: inMemory(shards)}))), 5)

	// The cursor fits the same shards elsewhere, and no others.
	at := Cursor{}
	for range must(Tar(names, TarOptions{Open: inMemory(shards)})).Run(t.Context(), &at) {
		if at.Pos == 3 {
			break
		}
	}
	elsewhere, moved := map[string][]byte{}, []string{}
	for _, name := range names {
		moved = append(moved, "https://host/dir/"+name+"?sig=1")
		elsewhere[moved[len(moved)-1]] = shards[name]
	}
	rest := outcomes(briefly(must(Tar(moved, TarOptions{Open: inMemory(elsewhere)}))).Run(t.Context(), ptr(throughJSON(t, at))))
	equal(t, "the rest", rest[:2], "[1b{txt:} 2a{txt:}]")
	for _, c := range []struct {
		names []string
		opts  TarOptions
	}{
		{names[:9], TarOptions{}},
		{append(slices.Clone(names[1:]), names[0]), TarOptions{}},
		{names, TarOptions{Shuffle: true}},
		{names, TarOptions{Shard: Shard{0, 2}}},
	} {
		c.opts.Open = inMemory(shards)
		got := outcomes(must(Tar(c.names, c.opts)).Run(t.Context(), ptr(at)))
		if len(got) != 1 {
			t.Fatalf("%v: %q", c.opts, got)
		}
		saysAll(t, errors.New(got[0]), "it was made by Tar(", "this is Tar(")
	}

	// After a last shard that failed comes nothing; a shard after that there is not.
	rank1 := must(Tar(names, TarOptions{Shard: Shard{1, 4}, Open: inMemory(nil)}))
	for item := range rank1(t.Context(), Cursor{}) {
		at = item.Next
	}
	equal(t, "after the last shard", outcomes(rank1.Run(t.Context(), ptr(throughJSON(t, at)))), "[]")
	damaged := *at.State.(*tarState)
	damaged.Shard++
	saysAll(t, errors.New(outcomes(rank1.Run(t.Context(), &Cursor{at.Epoch, at.Pos, damaged}))[0]), "damaged", "3 shards")

	// Names are compared one by one.
	at = Cursor{}
	pair := inMemory(map[string][]byte{"ab": tarEntries("1.txt=", "2.txt="), "c": tarEntries("3.txt="), "a": tarEntries("4.txt="), "bc": tarEntries("5.txt=")})
	for range must(Tar([]string{"ab", "c"}, TarOptions{Open: pair})).Run(t.Context(), &at) {
		break
	}
	saysAll(t, errors.New(outcomes(must(Tar([]string{"a", "bc"}, TarOptions{Open: pair})).Run(t.Context(), &at))[0]), "it was made by Tar(")

	// Several shards at once.
	var parts []Stream[Record]
	for i := range 3 {
		parts = append(parts, must(Tar(names, TarOptions{Shard: Shard{i, 3}, Open: inMemory(shards)})).Prefetch(4))
	}
	got := checkStream(t, briefly(Mix(MixOptions{Stop: StopAtLast}, parts...)), 0)
	equal(t, "mixed", got[:6], "[0a{txt:} 1a{txt:} 2a{txt:} 0b{txt:} 1b{txt:} 2b{txt:}]")
	equal(t, "mixed", len(got), 20)
}

// A faulty file fails in its own way after n bytes.
type faultyFile struct {
	io.Reader
	n    int
	fail func() error
}

func (f *faultyFile) Read(p []byte) (int, error) {
	if f.n == 0 {
		return 0, f.fail()
	}
	n, err := f.Reader.Read(p[:min(len(p), f.n)])
	f.n -= n
	return n, err
}

func (f *faultyFile) Close() error { return nil }

func TestTarOpeners(t *testing.T) {
	data := tarEntries("a.txt=1", "b.txt=2", "c.txt=3")
	failing := func(fail func() error) Opener {
		return func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return &faultyFile{bytes.NewReader(data), 2048 + 600, fail}, nil
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}
	}
	rest := "[a{txt:1} b{txt:2} c{txt:3}]"
	for _, c := range []struct {
		open   Opener
		before int
		says   []string
	}{
		{failing(func() error { return errBad }), 2, []string{`entry "c.txt"`, "offset 2048", "bad sample", `record "c"`}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			f := &faultyFile{bytes.NewReader(data), len(data), func() error { return io.EOF }}
			if name == "x" {
				f.n, f.fail = 0, func() error { panic("broken at once") }
			}
			return f, nil
		}, 0, []string{"panic: broken at once", "offset 0"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			f := &faultyFile{bytes.NewReader(data), len(data), func() error { return io.EOF }}
			if name == "x" {
				denied := errors.New("denied")
				f.n, f.fail = 0, func() error {
					defer func() { denied = io.EOF }()
					return denied
				}
			}
			return f, nil
		}, 0, []string{"denied", "offset 0"}},
		{failing(func() error { panic("broken") }), 2, []string{`entry "c.txt"`, "panic: broken"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				panic("no shard")
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"panic: no shard"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return nil, nil
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"the Opener returned nothing"}},
		{func(_ context.Context, name string, _ int64) (io.ReadCloser, error) {
			if name == "x" {
				return nil, io.EOF
			}
			return io.NopCloser(bytes.NewReader(data)), nil
		}, 0, []string{"EOF"}},
	} {
		got := outcomes(briefly(must(Tar([]string{"x", "y"}, TarOptions{Open: c.open}))).Epoch(t.Context(), 0))
		if len(got) != c.before+4 {
			t.Fatalf("%q: %q", c.says, got)
		}
		saysAll(t, errors.New(got[c.before]), append(c.says, `shard "x"`)...)
		equal(t, "the next shard", got[c.before+1:], rest)
	}

	// A reader that gives neither bytes nor an error.
	large := tarEntries("a.txt=" + strings.Repeat("x", 2*tarBuffer))
	for _, n := range []int{100, 1000, len(large) - 100} {
		got := outcomes(must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			return &faultyFile{bytes.NewReader(large), n, func() error { return nil }}, nil
		}})).Epoch(t.Context(), 0))
		saysAll(t, errors.New(got[len(got)-1]), "multiple Read calls return no data or error")
	}

	// Files: a missing one is an error, a resume seeks, and each is closed.
	name := onDisk(t, "x.tar", data)
	stream := must(Tar([]string{filepath.Join(t.TempDir(), "missing.tar"), name}, TarOptions{}))
	got := outcomes(briefly(stream).Epoch(t.Context(), 0))
	saysAll(t, errors.New(got[0]), "missing.tar", "no such file")
	equal(t, "the next shard", got[1:], rest)
	equal(t, "of a folder", len(outcomes(must(Tar([]string{t.TempDir(), name}, TarOptions{})).Epoch(t.Context(), 0))), 4)
	checkStream(t, briefly(stream), 0)
	r := must(OpenShard(t.Context(), name, 512))
	equal(t, "from byte 512 on", string(must(io.ReadAll(r))[:1]), "1")
	r.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBad)
	if _, err := OpenShard(ctx, name, 0); err != errBad {
		t.Errorf("Open with a context that has ended: %v", err)
	}
	if r, err := OpenShard(t.Context(), name, -1); r != nil || err == nil {
		t.Errorf("from byte -1 on: %v, %v", r, err)
	}
	if r, err := OpenShard(t.Context(), name+"missing", 0); r != nil || err == nil {
		t.Errorf("a missing file: %v, %v", r, err)
	}
	file := &countingFile{Reader: bytes.NewReader(data)}
	for range must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) { return file, nil }})).Epoch(t.Context(), 0) {
		break
	}
	if !file.closed {
		t.Error("the file is open after a break")
	}

	// A context that ends is noticed in a shard that gives no record, and in one that does not end.
	for _, block := range [][]byte{tarEntries("README=")[:512], make([]byte, 512)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		blocks := 0
		endless := readerFunc(func(p []byte) (int, error) {
			if blocks++; blocks == 100 {
				cancel(errBad)
			}
			return copy(p, block), nil
		})
		equal(t, "an endless shard", outcomes(must(Tar([]string{"x"}, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			return io.NopCloser(endless), nil
		}})).Epoch(ctx, 0)), "[error bad sample]")
	}

	// A record may have many files.
	var b bytes.Buffer
	w := NewTarWriter(&b)
	many := Record{Key: "clip"}
	for i := range 20000 {
		many.Files = append(many.Files, File{Name: fmt.Sprintf("%05d.txt", i)})
	}
	if err := errors.Join(w.Write(many), w.Close()); err != nil {
		t.Fatal(err)
	}
	for r := range must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": b.Bytes()})})).Epoch(t.Context(), 0) {
		equal(t, "files", len(r.Files), 20000)
	}
}

// TestTarMemory streams shards of which the longest would not fit into a test: what is held does not grow.
func TestTarMemory(t *testing.T) {
	record := tarEntries("a.bin=" + strings.Repeat("x", 4096))
	record = record[:len(record)-1024]
	held := func(shards, records int) uint64 {
		names := slices.Repeat([]string{"x"}, shards)
		stream := must(Tar(names, TarOptions{Open: func(context.Context, string, int64) (io.ReadCloser, error) {
			n := 0 // records as they are asked for, with keys that differ
			return io.NopCloser(io.MultiReader(readerFunc(func(p []byte) (int, error) {
				if n == records {
					return 0, io.EOF
				}
				copy(p, record)
				copy(p, fmt.Sprintf("%09d.bin\x00", n))
				copy(p[148:], "        ")
				sum := 0
				for _, c := range p[:512] {
					sum += int(c)
				}
				copy(p[148:], fmt.Sprintf("%06o\x00 ", sum))
				n++
				return len(record), nil
			}), bytes.NewReader(make([]byte, 1024)))), nil
		}}))
		most, k := uint64(0), 0
		for _, err := range stream.Epoch(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
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

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTarDataset(t *testing.T) {
	one := onDisk(t, "one.tar", tarEntries("d/a.txt=1", "d/a.CLS=2", "README=3", "b.bin="+strings.Repeat("x", 3000), "b.txt=4"))
	two := onDisk(t, "two.tar", tarEntries("c.txt=5", "c.bin="+strings.Repeat("y", 1<<20), "z="+strings.Repeat("z", 5<<20), "c.cls=6"))
	data := must(OpenTar(one, two, one))
	defer data.Close()
	equal(t, "Len", data.Len(), 5)
	want := indexed(t, one)
	want = slices.Concat(want, indexed(t, two), want)
	equal(t, "records", want[0], "d/a{txt:1 cls:2}")

	loader := newLoader[Record](t, data, Options{BatchSize: 2, Workers: 4}) // at once
	var got []string
	for range 5 {
		got = nil
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
	if r := must(data.Get(t.Context(), 3)); r.Shard != one {
		t.Errorf("record 3 is of shard %s", r.Shard)
	}
	data.Close()
	_, err := data.Get(t.Context(), 0)
	if e := (*TarError)(nil); !errors.As(err, &e) || !errors.Is(err, os.ErrClosed) || e.Shard != one || e.Entry != "d/a.txt" {
		t.Errorf("after Close: %v", err)
	}

	_, err = OpenTar()
	saysAll(t, err, "OpenTar", "no shards")
	_, err = OpenTar(one, filepath.Join(t.TempDir(), "missing.tar"))
	saysAll(t, err, "missing.tar", "no such file")
	for _, scheme := range []string{"https", "HTTPS", "s3"} {
		_, err = OpenTar(scheme + "://user:secret@host/x.tar?sig=secret")
		if saysAll(t, err, strings.ToLower(scheme)+"://host/x.tar", "use Tar"); strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
	_, err = OpenTar(onDisk(t, "x.tar", gzipped(tarEntries("a.txt=1"))))
	saysAll(t, err, "x.tar", "packed", "use Tar")
}

// TestTarIndex writes an index, byte for byte, and reads it and those that others write.
func TestTarIndex(t *testing.T) {
	shard := tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3")
	name := onDisk(t, "x.tar", shard)
	index := strings.TrimSuffix(name, "tar") + "idx"
	want := indexed(t, name)
	data := must(OpenTar(name))
	if err := data.WriteIndex(); err != nil {
		t.Fatal(err)
	}
	data.Close()
	const text = "v1.2 2\ntxt 1024 5 d/a.txt Seg.PNG 2048 1 d/a.Seg.PNG\ntxt 3072 0 b.txt cls 3584 1 b.cls\n"
	equal(t, "the index", string(must(os.ReadFile(index))), text)
	equal(t, "files beside the shard", len(must(os.ReadDir(filepath.Dir(name)))), 2)
	equal(t, "with the index", indexed(t, name), want)

	write := func(text string) {
		if err := os.WriteFile(index, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("v1.2 2\r\ntxt 1024 5 d/a.txt seg.png 2048 1 d/a.Seg.PNG\r\ntxt 3072 0 b.txt cls 3584 1 b.cls\r\n")
	equal(t, "with other line ends", indexed(t, name), want)

	// An index that has what is no record, cuts one in two, or lacks something of a record.
	for _, c := range []struct {
		shard []byte
		text  string
		want  string
	}{
		{tarEntries("__m__=x", "a.txt=1", ".h=2", "a.cls=3"), "v1.2 4\n 1 512 1 __m__\ntxt 1536 1 a.txt\nh 2560 1 .h\ncls 3584 1 a.cls\n", "[a{txt:1 cls:3}]"},
		{tarEntries("d/", "a.txt=1", "README=2", "a.cls=3", "b/"), "v1.2 2\ntxt 1024 1 a.txt\ncls 3072 1 a.cls\n", "[a{txt:1 cls:3}]"},
		{tarEntries("a.txt=1", "b.txt=2", "c.txt=3"), "v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 c.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2", "c.txt=3"), "v1.2 2\ntxt 1536 1 b.txt\ntxt 2560 1 c.txt\n", ""},
		{tarEntries("a.txt=1", "a.cls>a.txt", "b.txt=2"), "v1.2 2\ntxt 512 1 a.txt\ntxt 2048 1 b.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2", "b.cls>a.txt"), "v1.2 2\ntxt 512 1 a.txt\ntxt 1536 1 b.txt\n", ""},
		{tarEntries("a.txt=1", "b.txt=2"), "v1.2 0\n", "[a{txt:1} b{txt:2}]"},
	} {
		name := onDisk(t, "x.tar", c.shard)
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", []byte(strings.Replace(c.text, "\n 1 512", "\nx 512", 1)), 0o666); err != nil {
			t.Fatal(err)
		}
		if got := indexed(t, name); c.want != "" {
			equal(t, c.text, got, c.want)
		} else {
			saysAll(t, errors.New(got[0]), "the shard is not the one that was indexed", "x.idx")
		}
	}

	for _, c := range []struct{ text, says string }{
		{"", `it begins with ""`}, {"v1.1 2\n", `"v1.1 2", must begin with "v1.2"`}, {"\x00\x00\x02\x00", "it begins with"}, {"v1.2 x\n", "v1.2 x"}, {"v1.2 2", "0 lines of records, its first line says 2"},
		{"v1.2 3\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 3"},
		{"v1.2 0\ntxt 1024 5 d/a.txt\n", "1 lines of records, its first line says 0"},
		{"v1.2 1\ntxt 1024 5\n", "line 2 has 3 words"}, {"v1.2 1\ntxt 1024 5 d/a b.txt\n", "line 2 has 5 words"}, {"v1.2 2\n\n\n", "line 2 has 0 words"},
		{"v1.2 1\ntxt 1000 5 d/a.txt\n", `line 2: "d/a.txt" has the offset 1000`}, {"v1.2 1\ntxt 0 5 d/a.txt\n", "the offset 0"}, {"v1.2 1\ntxt -512 5 d/a.txt\n", "the offset -512"},
		{"v1.2 1\ntxt 1024 -5 d/a.txt\n", "the size -5"}, {"v1.2 1\ntxt 1024 500000 d/a.txt\n", "the size 500000"}, {"v1.2 1\ntxt 1024 9223372036854775807 d/a.txt\n", "9223372036854775807"},
		{"v1.2 1\ntxt 99999999999999999999 5 d/a.txt\n", "99999999999999999999"}, {"v1.2 1\ntxt 1024 x d/a.txt\n", "the size x"},
		{"v1.2 1\ntxt 1024 5 d/a.txt txt 2048 1 d/a.TXT\n", `line 2: record "d/a" has another field "txt"`}, {"v1.2 2\ncls 3584 1 b.cls\ntxt 1024 5 d/a.txt\n", `line 3: "d/a.txt" has the offset 1024`},
	} {
		write(c.text)
		_, err := OpenTar(name)
		saysAll(t, err, "x.idx", c.says, "without it the shard itself is read")
	}
	os.Remove(index)
	if err := os.Mkdir(index, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := OpenTar(name)
	saysAll(t, err, "x.idx", "is a directory")

	// An index of another shard is found out when it is opened, or at the first read of a record it is wrong about.
	for _, c := range []struct {
		shard []byte
		open  bool // found out then
		bad   int  // or by so many reads
	}{
		{shard, false, 0},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "README=3", "c.txt=4"), true, 0},
		{shard[:3584+512], true, 0},
		{tarEntries("d/", "d/A.txt=first", "d/A.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 1},
		{tarEntries("d/", "d/a.txt=other!", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2"), false, 1},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.cls=", "b.txt=2"), false, 1},
		{tarEntries("d/", "d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls>b.txt", "c="), false, 1},
		{tarEntries("d/a.txt=first", "d/a.Seg.PNG=1", "b.txt=", "b.cls=2", "c/", "c=", "c=", "c="), true, 0},
	} {
		name := onDisk(t, "x.tar", c.shard)
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		got := indexed(t, name)
		bad := 0
		for _, g := range got {
			if strings.HasPrefix(g, "error") {
				bad++
				if saysAll(t, errors.New(g), "x.tar"); !strings.Contains(g, "has been cut") {
					saysAll(t, errors.New(g), "the shard is not the one that was indexed", "x.idx")
				}
			}
		}
		if c.open != (len(got) == 1) || !c.open && bad != c.bad {
			t.Errorf("%d bytes: %q", len(c.shard), got)
		}
	}
	// Also of names that do not fit into one header, whose records have the same size.
	for _, prefix := range []string{"ä", strings.Repeat("x", 120)} {
		name := onDisk(t, "x.tar", tarEntries(prefix+"1.txt=1", prefix+"2.txt=2", prefix+"3.txt=3"))
		data := must(OpenTar(name))
		if err := data.WriteIndex(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		want := []string{prefix + "1{txt:1}", prefix + "2{txt:2}", prefix + "3{txt:3}"}
		equal(t, "with an index", indexed(t, name), want)
		if err := os.WriteFile(name, tarEntries(prefix+"3.txt=3", prefix+"1.txt=1", prefix+"2.txt=2"), 0o666); err != nil {
			t.Fatal(err)
		}
		for _, got := range indexed(t, name) {
			saysAll(t, errors.New(got), "the shard is not the one that was indexed")
		}
	}
	// And so is a shard that changes while it is open.
	name = onDisk(t, "x.tar", shard)
	data = must(OpenTar(name))
	defer data.Close()
	for _, change := range [][]byte{tarEntries("e/", "e/a.txt=first"), shard[:1024]} {
		if err := os.WriteFile(name, change, 0o666); err != nil {
			t.Fatal(err)
		}
		_, err := data.Get(t.Context(), 0)
		saysAll(t, err, "the shard is not the one that was indexed", "x.tar")
	}

	for _, c := range []struct {
		entries []string
		says    string
	}{
		{[]string{"a b.txt=1"}, `"a b.txt"`}, {[]string{"a.txt=1", "a.cls>a.txt"}, `"a.cls"`}, {[]string{"a.=1"}, `"a."`}, {nil, "no records"},
		{[]string{"a.txt=1", "a.txt=2"}, "another field"},
	} {
		data := must(OpenTar(onDisk(t, "x.tar", tarEntries(c.entries...))))
		saysAll(t, data.WriteIndex(), "x.idx", c.says)
		data.Close()
	}
	name = onDisk(t, "sparse.tar", archives(t)["gnu-sparse.tar"])
	data = must(OpenTar(name))
	saysAll(t, data.WriteIndex(), `"s.bin"`)
	data.Close()
	// Every other archive of GNU tar reads the same with an index as without.
	for _, format := range []string{"v7", "oldgnu", "gnu", "ustar", "posix", "gnu-long", "oldgnu-long", "ustar-prefix", "posix-long", "posix-global", "gnu-utf8", "posix-utf8", "dumpdir"} {
		name := onDisk(t, "x.tar", archives(t)[format+".tar"])
		want := indexed(t, name)
		data := must(OpenTar(name))
		if err := data.WriteIndex(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		equal(t, format, indexed(t, name), want)
	}
}

// FuzzTarIndex reads arbitrary bytes as the index of a shard: what it gives is what is in the shard, or an error.
func FuzzTarIndex(f *testing.F) {
	f.Add([]byte("v1.2 2\ntxt 512 5 a.txt cls 1536 1 a.cls\ntxt 2560 6 b.txt\n"))
	f.Add([]byte("v1.2 1\ntxt 512 5 a.txt\n"))
	f.Add([]byte("v1.2 99999999999\ntxt 2560 6 b.txt txt 512 5 a.txt\n"))
	f.Fuzz(func(t *testing.T, index []byte) {
		name := onDisk(t, "x.tar", tarEntries("a.txt=first", "a.cls=1", "b.txt=second"))
		if err := os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", index, 0o666); err != nil {
			t.Fatal(err)
		}
		for _, got := range indexed(t, name) {
			if !slices.Contains([]string{"a{txt:first cls:1}", "a{cls:1 txt:first}", "a{txt:first}", "a{cls:1}", "b{txt:second}"}, got) && !strings.HasPrefix(got, "error") {
				t.Fatalf("got %q", got)
			}
		}
	})
}

func TestTarWriter(t *testing.T) {
	var first, second bytes.Buffer
	w := NewTarWriter(&first)
	long := strings.Repeat("long/", 60) + "ü"
	records := []Record{
		{Key: "b", Files: []File{{"txt", []byte("1")}, {"cls", []byte("2")}}},
		{Key: "./d/a", Shard: "another", Files: []File{{"seg.png", bytes.Repeat([]byte("x"), 1000)}, {"__key__", nil}}},
		{Key: long, Files: []File{{"txt", nil}}},
		{Key: "__m__x", Files: []File{{"json", []byte("{}")}}},
	}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	before := first.Len()
	for _, c := range []struct {
		r    Record
		says []string
	}{
		{Record{Key: "c"}, []string{`"c"`, "no files"}},
		{Record{Key: "b", Files: []File{{"txt", nil}}}, []string{`a record "b" already`}},
		{Record{Key: "", Files: []File{{"txt", nil}}}, []string{`file ".txt"`, "left out"}},
		{Record{Key: "d/", Files: []File{{"txt", nil}}}, []string{`file "d/.txt"`, "left out"}},
		{Record{Key: "c.x", Files: []File{{"txt", nil}}}, []string{`file "c.x.txt"`, `field "x.txt" of record "c"`}},
		{Record{Key: "d/.c", Files: []File{{"txt", nil}}}, []string{`file "d/.c.txt"`, "hidden"}},
		{Record{Key: "__c__/d", Files: []File{{"txt", nil}}}, []string{`file "__c__/d.txt"`, "__meta__"}},
		{Record{Key: "/c", Files: []File{{"txt", nil}}}, []string{`key "/c"`, "relative"}},
		{Record{Key: "d/../../c", Files: []File{{"txt", nil}}}, []string{`key "d/../../c"`, `".."`}},
		{Record{Key: "c\x00", Files: []File{{"txt", nil}}}, []string{`key "c\x00"`}},
		{Record{Key: "c", Files: []File{{"t\x00t", nil}}}, []string{`field "t\x00t"`}},
		{Record{Key: "c", Files: []File{{"", nil}}}, []string{`field ""`, "must not be empty"}},
		{Record{Key: "c", Files: []File{{"txt", nil}, {"TXT", nil}}}, []string{`file "c.TXT"`, `field "txt"`}},
		{Record{Key: "c", Files: []File{{"a/b", nil}}}, []string{`file "c.a/b"`, "without a dot"}},
		{Record{Key: "c", Files: []File{{"txt", nil}, {"cls", nil}, {"txt", nil}}}, []string{`"c"`, `"txt" twice`}},
	} {
		saysAll(t, w.Write(c.r), append(c.says, "TarWriter")...)
	}
	equal(t, "bytes that a bad record has written", first.Len()-before, 0)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	saysAll(t, w.Write(Record{Key: "e", Files: []File{{"txt", nil}}}), "TarWriter", "after close")

	w = NewTarWriter(&second)
	for _, r := range records {
		slices.Reverse(r.Files)
		w.Write(r)
	}
	w.Close()
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same records make other bytes")
	}
	want := []string{"b{cls:2 txt:1}", brief(Record{Key: "./d/a", Files: []File{{"__key__", nil}, {"seg.png", bytes.Repeat([]byte("x"), 1000)}}}), long + "{txt:}", "__m__x{json:{}}"}
	equal(t, "read back", tarOutcomes(t, TarOptions{}, first.Bytes()), want)
	h := must(tar.NewReader(&first).Next())
	equal(t, "a header", fmt.Sprintf("%s %o %d %q %d %s", h.Name, h.Mode, h.Uid, h.Uname, h.ModTime.Unix(), h.Format), `b.cls 444 0 "" 0 USTAR`)

	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	w = NewTarWriter(z)
	for _, r := range records {
		w.Write(r)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	equal(t, "read back from gzip", tarOutcomes(t, TarOptions{}, zipped.Bytes()), want)

	w = NewTarWriter(&failingWriter{1000})
	var err error
	for i := 0; err == nil && i < 10; i++ {
		err = w.Write(Record{Key: strconv.Itoa(i), Files: []File{{"txt", nil}}})
	}
	saysAll(t, err, "TarWriter", `record "1"`, "bad sample")
	saysAll(t, w.Close(), "TarWriter", "bad sample")
}

// A failingWriter takes n bytes.
type failingWriter struct{ n int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, errBad
	}
	return len(p), nil
}

// TestTarNames reads and indexes a shard whose entries would like to be written elsewhere, and opens names that other
// libraries would execute. Nothing but the index is written.
func TestTarNames(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "in", "x.tar")
	os.Mkdir(filepath.Dir(name), 0o777)
	data := tarEntries("../../evil.txt=1", "/etc/evil.txt=2", "../evil.txt@/etc/passwd", "d/../../evil.idx=3")
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
	want := "[../../evil{txt:1} /etc/evil{txt:2} d/../../evil{idx:3}]"
	equal(t, "streamed", outcomes(briefly(must(Tar([]string{name}, TarOptions{}))).Epoch(t.Context(), 0)), want)
	d := must(OpenTar(name))
	defer d.Close()
	if err := d.WriteIndex(); err != nil {
		t.Fatal(err)
	}
	equal(t, "indexed", indexed(t, name), want)
	for _, command := range []string{"pipe:touch " + dir + "/evil", "|touch " + dir + "/evil", "file://" + name, "-"} {
		if _, err := OpenShard(t.Context(), command, 0); err == nil {
			t.Errorf("%s was opened", command)
		}
	}
	var found []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			found = append(found, filepath.Base(path))
		}
		return err
	})
	equal(t, "files", found, "[x.idx x.tar]")
}

// TestExpand has what bash makes of each pattern, but for braces that are not paired.
func TestExpand(t *testing.T) {
	for _, c := range []struct{ pattern, want string }{
		{"train.tar", "train.tar"}, {"", ""},
		{"train-{000..003}.tar", "train-000.tar train-001.tar train-002.tar train-003.tar"},
		{"{8..11}", "8 9 10 11"}, {"{08..11}", "08 09 10 11"}, {"{001..3}", "001 002 003"}, {"{1..03}", "01 02 03"},
		{"{0..10..5}", "0 5 10"}, {"{0..10..-5}", "0 5 10"}, {"{0..3..0}", "0 1 2 3"}, {"{0..9..4}", "0 4 8"},
		{"{3..0}", "3 2 1 0"}, {"{10..0..4}", "10 6 2"}, {"{-1..1}", "-1 0 1"}, {"{-01..1}", "-01 000 001"},
		{"{a..c..2}", "a c"}, {"{x..z}", "x y z"}, {"{Z..X}", "Z Y X"}, {"{X..[}", "{X..[}"}, {"{c..a}", "c b a"}, {"{a,b}{1,2}", "a1 a2 b1 b2"}, {"a{b,c{1..2}}", "ab ac1 ac2"},
		{"{a}", "{a}"}, {"{}", "{}"}, {"x{{a,b}}y", "x{a}y x{b}y"}, {"{,x}", " x"}, {"{1,2,}", "1 2 "}, {"{1..2}{a}", "1{a} 2{a}"},
		{"{a..3}", "{a..3}"}, {"{1..{2,3}}", "{1..2} {1..3}"}, {"{1...3}", "{1...3}"}, {"{1..3..x}", "{1..3..x}"}, {"{1..2..3..4}", "{1..2..3..4}"},
		{"p{a,{b,c}d,}s", "pas pbds pcds ps"}, {`a\{b\,c\}`, "a{b,c}"}, {`{a\,b,c}`, "a,b c"}, {`a\\{1,2}`, `a\1 a\2`}, {`a\`, `a\`},
		{"{9223372036854775806..9223372036854775807}", "9223372036854775806 9223372036854775807"},
		{"{-9223372036854775807..-9223372036854775808}", "-9223372036854775807 -9223372036854775808"},
		{"{1..9223372036854775807..9223372036854775806}", "1 9223372036854775807"},
		{"{0..1..-9223372036854775808}", "0"}, {"{1..99999999999999999999}", "{1..99999999999999999999}"},
	} {
		got, err := Expand(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, c.pattern, strings.Join(got, " "), c.want)
	}
	for pattern, says := range map[string]string{
		"a{b": "a { has no }", "a}b": "a } has no {", "{a,b}}": "a } has no {", "{{a,b}": "a { has no }", "x{a,b}{": "a { has no }",
		"{1..9223372036854775807}":             "more than 1048576 names",
		"{0..1048576}":                         "more than 1048576 names",
		"{-9223372036854775808..0}":            "more than 1048576 names",
		"{1..1024}{1..1024}{1..2}":             "more than 1048576 names",
		"{{1..1000000},{1..1000000}}":          "more than 1048576 names",
		strings.Repeat("{0,1,2,3,4,5,6,7}", 7): "more than 1048576 names",
	} {
		_, err := Expand(pattern)
		saysAll(t, err, "Expand", says)
	}
	equal(t, "as many as there may be", len(must(Expand("{1..1024}{1..1024}"))), 1<<20)
}

func TestDecode(t *testing.T) {
	var img bytes.Buffer
	must(0, png.Encode(&img, image.NewGray(image.Rect(0, 0, 3, 2))))
	for _, c := range []struct {
		name, data string
		want       string
	}{
		{"png", img.String(), "*image.Gray (0,0)-(3,2)"}, {"d.x/a.seg.PNG", img.String(), "*image.Gray (0,0)-(3,2)"}, {"jpg", img.String(), "*image.Gray (0,0)-(3,2)"},
		{"json", `{"a":[1,null]}`, "map[string]interface {} map[a:[1 <nil>]]"}, {"txt", "text", "string text"}, {"a.transcript", "text", "string text"},
		{"cls", " 12\n", "int 12"}, {"count", "-1", "int -1"}, {"bin", "12", "[]uint8 [49 50]"}, {"README", "x", "[]uint8 [120]"}, {"", "x", "[]uint8 [120]"}, {"txt.gz", "x", "[]uint8 [120]"},
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

// TestTarStages has webdataset's loaders as compositions: a field that is missing, records that cannot be decoded, epochs of
// another length.
func TestTarStages(t *testing.T) {
	var entries []string
	for i := range 47 {
		entries = append(entries, fmt.Sprintf("%02d.cls=%d", i, i))
		if i%2 == 0 {
			entries = append(entries, fmt.Sprintf("%02d.png=x", i))
		}
	}
	stream := must(Tar([]string{"x"}, TarOptions{Open: inMemory(map[string][]byte{"x": gzipped(tarEntries(entries...))})}))
	good := 0
	for _, err := range Map(stream, 3, func(_ context.Context, r Record) (int, error) {
		if r.Get("png") == nil {
			return 0, errors.New("no png")
		}
		return strconv.Atoi(string(r.Get("cls")))
	}).Epoch(t.Context(), 0) {
		if err == nil {
			good++
		}
	}
	equal(t, "with a png", good, 24)
	count := func(s Stream[Record]) int { return len(collect(t, s.Epoch(t.Context(), 0))) }
	equal(t, "twice", count(stream.Repeat(2)), 94)
	equal(t, "193", count(stream.Repeat(0).Take(193)), 193)
	equal(t, "10", count(stream.Take(10)), 10)
	equal(t, "batches of 3", len(collect(t, Batch(stream, 3, List[Record]).Epoch(t.Context(), 0))), 16)
	ranks := 0
	for i := range 4 {
		ranks += count(stream.Shard(Shard{i, 4}))
	}
	equal(t, "one shard on 4 ranks", ranks, 47)
}
