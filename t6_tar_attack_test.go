package dataloader

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What broke under attack, in tar shards. Each of these tests failed once.

// TestTarZeros shows that a shard whose end, or all of it, was never written is an error, and that the zeros of a large
// blocking factor are not.
func TestTarZeros(t *testing.T) {
	sound := tarEntries("a.txt=1", "b.txt=2", "b.cls=3")
	zeros := func(n int) []byte { return make([]byte, n) }
	for _, c := range []struct {
		name string
		data []byte
		want string // the records
		says string
	}{
		{"one block of zeros", zeros(512), "[]", "the archive is empty: it begins with zeros"},
		{"an end marker", zeros(1024), "[]", "the archive is empty: it begins with zeros"},
		{"3 MiB of zeros", zeros(3 << 20), "[]", "the archive is empty: it begins with zeros"},
		{"1 MiB after the end marker", append(sound, zeros(1<<20)...), "[a{txt:1} b{txt:2 cls:3}]", ""},
		{"more than 1 MiB after it", append(sound, zeros(1<<20+1)...), "[a{txt:1}]", "more than 1 MiB of zeros after the end marker"},
		{"a field became zeros", append(sound[:3072:3072], zeros(2<<20)...), "[a{txt:1}]", `record "b", which may lack files, is left out`},
	} {
		for _, data := range [][]byte{c.data, gzipped(c.data)} {
			got := tarOutcomes(t, inMemory(map[string][]byte{"x": data}), "x")
			if c.says != "" {
				saysAll(t, errors.New(got[len(got)-1]), c.says, `shard "x"`)
				got = got[:len(got)-1]
			}
			equal(t, c.name, got, c.want)
		}
		if got := indexed(t, onDisk(t, "x.tar", c.data)); c.says == "" {
			equal(t, c.name+" indexed", got, c.want)
		} else {
			equal(t, c.name+" indexed", len(got), 1)
			saysAll(t, errors.New(got[0]), c.says)
		}
	}
}

// ofType returns an archive in which the header at an offset has another type.
func ofType(data []byte, at int, kind string) []byte {
	return withSum(withBytes(data, at+156, kind), at)
}

// TestTarTypes shows that entries of an unknown type are files, and that headers which rename or continue another entry
// are errors.
func TestTarTypes(t *testing.T) {
	data := tarEntries("a.jpg=1", "a.cls=2", "b.cls=3")
	for _, kind := range []string{"Z", "8", "\xff"} {
		changed := ofType(data, 0, kind)
		equal(t, kind, tarOutcomes(t, inMemory(map[string][]byte{"x": changed}), "x"), "[a{jpg:1 cls:2} b{cls:3}]")
		equal(t, kind+" indexed", indexed(t, onDisk(t, "x.tar", changed)), "[a{jpg:1 cls:2} b{cls:3}]")
	}
	for _, kind := range []string{"X", "M"} {
		changed := ofType(data, 2048, kind)
		got := tarOutcomes(t, inMemory(map[string][]byte{"x": changed}), "x")
		equal(t, kind, len(got), 1)
		for _, got := range append(got, indexed(t, onDisk(t, "x.tar", changed))...) {
			saysAll(t, errors.New(got), fmt.Sprintf("its type is '%s'", kind), `entry "b.cls"`)
		}
	}
	equal(t, "a volume label", tarOutcomes(t, inMemory(map[string][]byte{"x": ofType(data, 2048, "V")}), "x"), "[a{jpg:1 cls:2}]")
}

// TestTarIndexDamaged changes each letter of an index. Every record that is read is one of the shard's, or an error.
func TestTarIndexDamaged(t *testing.T) {
	shard := tarEntries("a.txt=1", "a.cls=2", "b.txt=3", "README=4", "b.cls=5", "c.txt=6")
	name := onDisk(t, "x.tar", shard)
	must(0, writeIndex(name))
	index := string(must(os.ReadFile(strings.TrimSuffix(name, "tar") + "idx")))
	sound := "a{txt:1 cls:2} b{txt:3 cls:5} c{txt:6}"
	equal(t, "sound", strings.Join(indexed(t, name), " "), sound)
	seen := 0
	for i := range index {
		for _, c := range "abcx.0 " {
			must(0, os.WriteFile(strings.TrimSuffix(name, "tar")+"idx", withBytes([]byte(index), i, string(c)), 0o666))
			for _, got := range indexed(t, name) {
				if isError(got) {
					seen++
				} else if !strings.Contains(sound, got) || !strings.HasSuffix(got, "}") {
					t.Errorf("%q at %d: %s", c, i, got)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no damage was noticed")
	}
	// A folder in the place of an empty file.
	name = onDisk(t, "x.tar", tarEntries("a.txt=1", "a.cls="))
	must(0, writeIndex(name))
	must(0, os.WriteFile(name, ofType(tarEntries("a.txt=1", "a.cls="), 1024, "5"), 0o666))
	saysAll(t, errors.New(indexed(t, name)[0]), "the shard is not the one that was indexed")
}

// TestTarNamesCount shows that names, and the files themselves, count under MaxFile.
func TestTarNamesCount(t *testing.T) {
	many := func(n int, name string) (entries []string) {
		for i := range n {
			entries = append(entries, fmt.Sprintf("a.%d%s=", i, name))
		}
		return append(entries, "b.txt=2")
	}
	for _, c := range [][]string{many(20, strings.Repeat("x", 10_000)), many(2000, "")} {
		data := tarEntries(c...)
		for _, opts := range []TarOptions{{MaxFile: 100_000}, {MaxFile: 100_000, Fields: []string{"txt"}}} {
			got := checkStream(t, tarOf(opts, data), 0)
			equal(t, "outcomes", len(got), 2)
			saysAll(t, errors.New(got[0]), "make the record larger than MaxFile, 100000")
			equal(t, "the next record", got[1], "b{txt:2}")
		}
	}
}

// TestTarIndexMemory shows that a record by index has the bound of a stream: for sparse files, for hard links, and with
// an index. The bound of OpenTar is 1 GiB; here it is smaller.
func TestTarIndexMemory(t *testing.T) {
	read := func(name string) (got []string) {
		x := &tarIndex{name: name, faults: map[int]error{}}
		must(0, x.build(newRecordReader(name, 5000)))
		defer x.file.Close()
		for i := range x.Len() {
			got = append(got, outcomes(one(briefOf(x.Get(t.Context(), i))))...)
		}
		return got
	}
	big, half := strings.Repeat("x", 4000), strings.Repeat("y", 1900)
	for _, entries := range [][]string{
		{"a.bin=" + big, "b.1>a.bin", "b.2>a.bin", "c.txt=3"},
		{"a.bin=" + big, "b.1=" + big, "b.2=" + half, "c.txt=3"},
		{"a.bin=" + big, "b." + strings.Repeat("n", 5000) + "=", "c.txt=3"},
	} {
		name := onDisk(t, "x.tar", tarEntries(entries...))
		for range 2 {
			got := read(name)
			equal(t, "records", len(got), 3)
			saysAll(t, errors.New(got[1]), `entry "b.`, "make the record larger than MaxFile, 5000")
			equal(t, "the last", got[2], "c{txt:3}")
			if d := must(OpenTar(name)); d.WriteIndex() != nil { // of hard links
				break
			}
		}
	}
	// A sparse file that does not fit is refused where its header is.
	sparse := onDisk(t, "x.tar", archives(t)["posix-sparse-1.0.tar"])
	x := &tarIndex{name: sparse, faults: map[int]error{}}
	saysAll(t, x.build(newRecordReader(sparse, 50_000)), "100000 bytes make the record larger than MaxFile, 50000")
}

// briefOf is a record in brief.
func briefOf(r Record, err error) (string, error) { return brief(r), err }

// TestTarWriterWhole shows that a record is written whole or not at all, and that fields have neither a dot in front nor
// the key in them.
func TestTarWriterWhole(t *testing.T) {
	var b bytes.Buffer
	w := NewTarWriter(&b)
	for _, c := range []struct{ key, field, says string }{
		{"y", strings.Repeat("x", 1<<20), "has 1048578 bytes, must have at most 1000000"},
		{strings.Repeat("x", 1<<20), "txt", "must have at most 1000000"},
		{"y", ".jpg", `field ".jpg" must be "jpg"`},
		{"y", "y.jpg", `field "y.jpg" must be "jpg"`},
		{"d/y", "y.seg.png", `field "y.seg.png" must be "seg.png"`},
		{"d/y", "d/y.jpg", `field "d/y.jpg" must be "jpg"`},
	} {
		err := w.Write(Record{Key: c.key, Files: []File{{"a", []byte("1")}, {c.field, []byte("2")}}})
		if saysAll(t, err, "dataloader: TarWriter: record ", c.says); len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		equal(t, "bytes written", b.Len(), 0)
	}
	long := strings.Repeat("x", 999_000)
	must(0, w.Write(Record{Key: "y", Files: []File{{"a", []byte("1")}, {long, []byte("2")}}}))
	must(0, w.Close())
	for r, err := range must(Tar([]string{"x"}, TarOptions{Open: opening(&b)})).Epoch(t.Context(), 0) {
		equal(t, "a long name", fmt.Sprintf("%s %s %v", r.Get("a"), r.Get(long), err), "1 2 <nil>")
	}
}

// TestSecretsElsewhere looks for secrets in names that are not quite URLs, and in what redirects say and send.
func TestSecretsElsewhere(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"pipe:curl -s https://user:secret@host/x.tar", "pipe:(not a URL)"},
		{"foo:bar://user:secret@host/x.tar", "foo:(not a URL)"},
		{"| curl -u user:secret https://host/x.tar", "|:(not a URL)"},
		{"http://user:sec%ret@host/x.tar", "http:(not a URL)"},
		{"s3://user:secret@host/x.tar?secret#secret", "s3://host/x.tar"},
		{"a:b.tar", "a:b.tar"},
	} {
		equal(t, c.name, redact(c.name), c.want)
		if got := tarOutcomes(t, nil, c.name)[0]; strings.Contains(got, "sec") {
			t.Error(got)
		}
	}
	// Cursors still tell shards apart whose names are not shown.
	equal(t, "digests differ", digest([]string{"pipe:curl https://h/1.tar"}) != digest([]string{"pipe:curl https://h/2.tar"}), true)
	equal(t, "signatures do not count", digest([]string{"https://h/1.tar?sig=1"}) == digest([]string{"https://i/1.tar?sig=2"}), true)

	s := serveTar(t, status(http.StatusFound, "Location", "/a%zz?sig=secret"))
	got := s.records(t, "/x.tar?sig=secret")
	equal(t, "requests", len(s.requests()), 1)
	if saysAll(t, errors.New(got[0]), "redirects to something that is not a URL"); strings.Contains(got[0], "secret") {
		t.Error(got[0])
	}
}

// TestWebRedirects shows what is sent to the target of a redirect: no Referer, which would hold the signature of the
// first request, and the wish that the connection is closed. No goroutine outlives the range.
func TestWebRedirects(t *testing.T) {
	data := tarEntries("a.txt=1")
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Referer() != "" || !r.Close {
			t.Errorf("referer %q, close %t", r.Referer(), r.Close)
		}
		w.Write(data)
	}))
	defer target.Close()
	s := serveTar(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.URL+"/x.tar?sig=2", http.StatusFound)
	})
	equal(t, "records", s.records(t, "/x.tar?sig=1"), "[a{txt:1} z{txt:after}]")

	// The user's own rules for redirects are asked, too.
	s.web.client.CheckRedirect = func(*http.Request, []*http.Request) error { return errBad }
	got := s.records(t, "/x.tar")
	saysAll(t, errors.New(got[0]), "attempt 1: bad sample")
}

// TestRetryNever shows that errors which cannot change are errors at once.
func TestRetryNever(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer secure.Close()
	loop := serveTar(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	foreign := serveTar(t, status(http.StatusFound, "Location", "ftp://host/x.tar?sig=secret"))
	for _, c := range []struct{ name, says string }{
		{secure.URL + "/x.tar", "unknown authority"},
		{loop.URL + "/x.tar", "10 redirects"},
		{foreign.URL + "/x.tar", "redirects to ftp"},
		{"http://127.0.0.1:99999/x.tar", "invalid port"},
		{strings.Replace(loop.URL, "http:", "https:", 1) + "/x.tar", "HTTP response to HTTPS client"},
	} {
		w := loop.web
		w.client = &http.Client{Transport: &http.Transport{TLSClientConfig: new(tls.Config)}}
		w.wait = func(context.Context, time.Duration) error { t.Errorf("%s is asked for again", c.name); return errBad }
		_, err := w.connect(t.Context(), c.name, 0)
		if saysAll(t, err, "attempt 1: ", c.says); strings.Contains(fmt.Sprint(err), "secret") {
			t.Error(err)
		}
	}
}

// TestOpenShardNames shows which names OpenShard reads: schemes in capitals, and the URLs of files.
func TestOpenShardNames(t *testing.T) {
	s := serveTar(t, sends([]byte("data"), "", -1))
	name := onDisk(t, "a b.tar", []byte("data"))
	escaped := strings.ReplaceAll(filepath.ToSlash(name), " ", "%20")
	for _, name := range []string{strings.Replace(s.URL, "http", "HTTP", 1), "file://" + escaped, "FILE://localhost" + escaped, name} {
		r, err := OpenShard(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, name, string(must(io.ReadAll(r))), "data")
		r.Close()
	}
	for _, name := range []string{"file://host/x.tar", "gs://host/x.tar"} {
		saysAll(t, errorOf(OpenShard(t.Context(), name, 0)), "OpenShard reads files and http and https URLs", name)
	}
}

// TestTarNotUTF8 shows that fields which are not UTF-8 stay apart, and can be asked for.
func TestTarNotUTF8(t *testing.T) {
	data := tarEntries("a.x\xe9=1", "a.x\xe8=2", "a.ÄB=3")
	equal(t, "streamed", tarOutcomes(t, inMemory(map[string][]byte{"x": data}), "x"), []string{"a{x\xe9:1 x\xe8:2 äb:3}"})
	equal(t, "indexed", indexed(t, onDisk(t, "x.tar", data)), []string{"a{x\xe9:1 x\xe8:2 äb:3}"})
	equal(t, "one field", checkStream(t, tarOf(TarOptions{Fields: []string{"x\xe9"}}, data), 0), []string{"a{x\xe9:1}"})
}

// TestTarMessages shows errors that say what to do.
func TestTarMessages(t *testing.T) {
	sound := tarEntries("a.txt=1")
	shards := inMemory(map[string][]byte{"small": []byte("Not found\n"), "open": sound[:1024]})
	for _, c := range []struct {
		name  string
		says  []string
		where bool
	}{
		{"x-{000..146}.tar", []string{"Expand lists its names"}, false},
		{"missing", []string{`shard "missing": file does not exist`}, false},
		{"small", []string{"it has only 10 bytes, so it is no tar archive, or it has been truncated"}, true},
		{"open", []string{"no end marker", "was the TarWriter closed?"}, true},
	} {
		got := tarOutcomes(t, shards, c.name)
		saysAll(t, errors.New(got[0]), c.says...)
		equal(t, c.name+" says where", strings.Contains(got[0], "offset"), c.where)
	}
	err := errorOf(OpenTar("missing-{0..3}.tar"))
	if saysAll(t, err, "Expand lists its names"); strings.Contains(err.Error(), "offset") {
		t.Error(err)
	}
	if e := (*TarError)(nil); !errors.As(err, &e) || e.Offset != -1 {
		t.Errorf("%#v", e)
	}
}
