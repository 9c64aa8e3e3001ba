package recipes

// Shards that are not on a disk of this machine.
//
//	Example_ownStore       an Opener for any store
//	Example_reopenedStore  a client of S3, GCS or Azure, which may break
//	Example_bearerToken    a token in a header
//	Example_presignedURL   S3 without a client
//	Example_shardsOnDisk   kept on a local disk
//	Example_remoteRecords  records of remote shards by index
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing/fstest"
	"time"

	"dataloader"
)

// An Opener reads shards from any other store, here a file system in memory.
func Example_ownStore() {
	shard := shardOf("cat.txt=meow") // a tar file with one record
	store := fstest.MapFS{"bucket/train.tar": {Data: shard}}
	var open dataloader.Opener = func(ctx context.Context, name string,
		offset int64) (io.ReadCloser, error) {
		object, ok := strings.CutPrefix(name, "mem://")
		if !ok {
			return dataloader.OpenShard(ctx, name, offset)
		}
		file, err := store.Open(object)
		if err != nil {
			return nil, err
		}
		if _, err := file.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
			file.Close()
			return nil, err
		}
		return file, nil
	}
	records, err := dataloader.Tar([]string{"mem://bucket/train.tar"},
		dataloader.TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", r.Key, r.Get("txt"))
	}
	// Output: cat: meow
}

// A reopened reader opens an object when its first byte is asked for, and again
// where a connection has broken. Temporary says which errors it gets over, of
// get and of bodies. After five failures in a row, without a byte between them,
// the next one is an error.
type reopened struct {
	ctx       context.Context
	get       func(etag string, offset int64) (body io.ReadCloser, tag string, err error)
	temporary func(error) bool
	wait      time.Duration // after the first failure; then twice as long each time

	object   io.ReadCloser // nil if it is to be opened at offset
	etag     string        // of the first answer
	offset   int64
	failures int
}

func (r *reopened) Read(p []byte) (n int, err error) {
	for {
		err = nil
		if r.object == nil {
			var tag string
			if r.object, tag, err = r.get(r.etag, r.offset); err == nil && r.etag == "" {
				r.etag = tag
			}
		}
		if err == nil {
			n, err = r.object.Read(p)
		}
		r.offset += int64(n)
		if n > 0 {
			r.failures = 0
		}
		if err == nil || err == io.EOF || !r.temporary(err) || r.failures == 5 {
			return n, err
		}
		r.Close()
		if n > 0 {
			return n, nil
		}
		r.failures++
		select {
		case <-time.After(r.wait << (r.failures - 1)):
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
}

// Seek is called by Tar to skip large files, relative to the offset. The next
// Read asks for the bytes from there on.
func (r *reopened) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent {
		return 0, errors.ErrUnsupported
	}
	r.offset += offset
	return r.offset, r.Close()
}

func (r *reopened) Close() (err error) {
	if r.object != nil {
		err = r.object.Close()
	}
	r.object = nil
	return err
}

// The client of a store, of S3, GCS or Azure, as an Opener that survives broken
// connections and a store that is away for up to 31 seconds. Without reopened
// each break costs the rest of its shard, as one failed item, and a store that
// is away costs whole shards. What is not temporary, such as a shard that is
// missing, is an error at once. What has no answer, such as a wrong name of the
// host or no credentials, is tried again, for half a minute. All requests for
// one shard name the version that the first answer had, since an object that is
// replaced meanwhile would be continued in the middle of another; a store
// without versions or ETags cannot prevent that. Copy the type reopened, too.
//
// With github.com/minio/minio-go/v7, get sets opts.SetRange(offset, 0) if
// offset is not 0, and opts.SetMatchETag(etag) if etag is not empty, and calls
// minio.Core.GetObject, whose ObjectInfo has the ETag. Temporary is
//
//	code := minio.ToErrorResponse(err).StatusCode // 0 if there was no answer
//	return code == 0 || code == 408 || code == 429 || code >= 500
//
// With github.com/aws/aws-sdk-go-v2/service/s3, get passes Range, "bytes=5-"
// for the offset 5, and IfMatch to Client.GetObject. Temporary is
//
//	var answer *http.ResponseError // of github.com/aws/smithy-go/transport/http
//	code := 0                      // as in an answer that has not come
//	if errors.As(err, &answer) {
//		code = answer.HTTPStatusCode()
//	}
//	return code == 0 || code == 408 || code == 429 || code >= 500
func Example_reopenedStore() {
	shard := shardOf("cat.txt=" + strings.Repeat("purr", 1000)) // a tar file with one record
	errReset, errMissing := errors.New("the connection was reset"), errors.New("no such object")
	requests := 0
	// get is the store's client. Here it has no connection at first, and each
	// connection breaks after 1,500 bytes.
	get := func(
		_ context.Context, name, etag string, offset int64,
	) (body io.ReadCloser, tag string, err error) {
		requests++
		switch {
		case name != "s3://bucket/train.tar":
			return nil, "", errMissing
		case etag != "" && etag != "v1":
			return nil, "", fmt.Errorf("%s has another version than %s", name, etag)
		case requests < 3:
			return nil, "", errReset
		}
		rest := shard[offset:]
		if len(rest) <= 1500 {
			return io.NopCloser(bytes.NewReader(rest)), "v1", nil
		}
		breaks := breaksAfter(rest[:1500], func() error { return errReset })
		return io.NopCloser(breaks), "v1", nil
	}
	open := func(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
		return &reopened{
			ctx: ctx, offset: offset,
			get: func(etag string, offset int64) (io.ReadCloser, string, error) {
				return get(ctx, name, etag, offset)
			},
			temporary: func(err error) bool { return errors.Is(err, errReset) },
			wait:      time.Millisecond, // time.Second for a server
		}, nil
	}
	shards := []string{"s3://bucket/train.tar", "s3://bucket/missing.tar"}
	records, err := dataloader.Tar(shards, dataloader.TarOptions{Open: open})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		missing := errors.Is(err, errMissing)
		fmt.Printf("%q: %d bytes, requests so far: %d, missing: %v\n",
			r.Key, len(r.Get("txt")), requests, missing)
	}
	// Output:
	// "cat": 4000 bytes, requests so far: 6, missing: false
	// "": 0 bytes, requests so far: 7, missing: true
}

// A roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A store that wants a token in a header: set http.DefaultClient.Transport
// before the first loop. Then OpenShard retries and resumes as ever, and each
// request has the token of that moment. Only one scheme and host get it,
// because stores redirect to others. Copy the type roundTrip, too.
func Example_bearerToken() {
	var leaked string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked = r.Header.Get("Authorization")
		shard := dataloader.NewTarWriter(w)
		err := shard.Write(dataloader.Record{Key: "cat", Files: []dataloader.File{{Name: "txt"}}})
		if err := errors.Join(err, shard.Close()); err != nil {
			fmt.Println(err)
		}
	}))
	defer other.Close()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer store.Close()

	origin := store.URL                        // such as "https://huggingface.co"
	token := func() string { return "secret" } // os.Getenv("HF_TOKEN"), or from a file that changes
	http.DefaultClient.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Scheme+"://"+r.URL.Host == origin {
			r = r.Clone(r.Context()) // a RoundTripper must not change its request
			r.Header.Set("Authorization", "Bearer "+token())
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	defer func() { http.DefaultClient.Transport = nil }()
	records, err := dataloader.Tar([]string{store.URL + "/train-000.tar"}, dataloader.TarOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range records.Epoch(context.Background(), 0) {
		fmt.Printf("%s %v, the other host has got %q\n", r.Key, err, leaked)
	}
	// Output: cat <nil>, the other host has got ""
}

// A private bucket of S3, read by presigned URLs (AWS: Authenticating Requests:
// Using Query Parameters, Signature Version 4). A URL is made when a shard is
// opened. It should be valid for as long as the shard may be read, because
// OpenShard resumes a broken connection with the same URL; S3 allows seven
// days. Other stores of the S3 protocol differ in host and region.
func Example_presignedURL() {
	const keyID, secret = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	const region = "us-east-1"
	sum := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	presign := func(bucket, object string, now time.Time, valid time.Duration) string {
		stamp := now.UTC().Format("20060102T150405Z")
		scope := stamp[:8] + "/" + region + "/s3/aws4_request"
		host := bucket + ".s3.amazonaws.com"
		path := "/" + strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(object))
		query := url.Values{
			"X-Amz-Algorithm":     {"AWS4-HMAC-SHA256"},
			"X-Amz-Credential":    {keyID + "/" + scope},
			"X-Amz-Date":          {stamp},
			"X-Amz-Expires":       {fmt.Sprint(int(valid.Seconds()))},
			"X-Amz-SignedHeaders": {"host"},
		}.Encode() // sorted, as the signature wants it
		const canonical = "GET\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD"
		request := sha256.Sum256(fmt.Appendf(nil, canonical, path, query, host))
		text := fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%x", stamp, scope, request)
		key := []byte("AWS4" + secret)
		for part := range strings.SplitSeq(scope, "/") {
			key = sum(key, part)
		}
		return fmt.Sprintf("https://%s%s?%s&X-Amz-Signature=%x", host, path, query, sum(key, text))
	}
	var open dataloader.Opener = func(ctx context.Context, name string,
		offset int64) (io.ReadCloser, error) {
		bucket, object, _ := strings.Cut(strings.TrimPrefix(name, "s3://"), "/")
		return dataloader.OpenShard(ctx, presign(bucket, object, time.Now(), 24*time.Hour), offset)
	}
	_, err := dataloader.Tar([]string{"s3://examplebucket/train-000.tar"},
		dataloader.TarOptions{Open: open})
	fmt.Println(err)

	// The example of AWS's documentation.
	day := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	address, err := url.Parse(presign("examplebucket", "test.txt", day, 24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(address.Query().Get("X-Amz-Signature"))
	// Output:
	// <nil>
	// aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404
}

// A diskCache keeps remote shards in a folder of a local disk. Nothing is
// removed, and a shard that is replaced on the server is not noticed: give it a
// new name. Processes that are killed leave files *.part.
type diskCache string

// open is an Opener. What is truncated, or does not fit, is read from the
// server in each epoch, after an attempt to keep it.
func (dir diskCache) open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	// Without a signature. Keep the query if it names the shard.
	address, _, _ := strings.Cut(name, "?")
	local := filepath.Join(string(dir), fmt.Sprintf("%x.tar", sha256.Sum256([]byte(address))))
	if _, err := os.Stat(local); err != nil {
		if err := dir.keep(ctx, name, local); err != nil {
			fmt.Println("not kept:", path.Base(address)) // log err, too
			return dataloader.OpenShard(ctx, name, offset)
		}
	}
	return dataloader.OpenShard(ctx, local, offset)
}

// keep downloads a shard, which gets its name when all of it is on the disk and
// Tar finds its end, so processes may share the folder. A record with a fault
// of its own is kept.
func (dir diskCache) keep(ctx context.Context, name, local string) error {
	remote, err := dataloader.OpenShard(ctx, name, 0) // or any other store
	if err != nil {
		return err
	}
	defer remote.Close()
	file, err := os.CreateTemp(string(dir), "*.part")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // of no effect after Rename
	_, err = io.Copy(file, remote)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err != nil {
		return err
	}
	// No fields: the data of all files are skipped.
	records, err := dataloader.Tar([]string{file.Name()}, dataloader.TarOptions{Fields: []string{}})
	if err != nil {
		return err
	}
	for _, err := range records.Epoch(ctx, 0) {
		var bad *dataloader.TarError
		if err != nil && (!errors.As(err, &bad) || bad.Rest) {
			return err
		}
	}
	return os.Rename(file.Name(), local)
}

// Remote shards are kept on a local disk: the epochs after the first read them
// there.
func Example_shardsOnDisk() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store := fstest.MapFS{}
	server := httptest.NewServer(http.FileServerFS(store))
	defer server.Close()
	records, err := dataloader.Tar([]string{server.URL + "/a.tar"},
		dataloader.TarOptions{Open: diskCache(dir).open})
	if err != nil {
		log.Fatal(err)
	}
	shard := shardOf("cat.txt=meow", "dog.txt=woof", "dog.txt=arf") // the dog has a field twice
	for epoch, data := range [][]byte{shard[:600], shard, nil} {
		store["a.tar"] = &fstest.MapFile{Data: data} // what the server has in this epoch
		for r, err := range records.Epoch(context.Background(), epoch) {
			fmt.Printf("epoch %d: %q, failed: %v\n", epoch, r.Key, err != nil)
		}
	}
	// Output:
	// not kept: a.tar
	// epoch 0: "", failed: true
	// epoch 1: "cat", failed: false
	// epoch 1: "", failed: true
	// epoch 2: "cat", failed: false
	// epoch 2: "", failed: true
}

// A recordPlace is an entry of an index, which is saved as JSON: where a record
// is, and a checksum of its bytes and of the header behind them, with which the
// next record begins. So a record that was replaced, or has another file now,
// is an error.
type recordPlace struct {
	Shard, Key string
	Begin, End int64
	Sum        uint32
}

// indexRecords appends the records of a tar file, before its upload. The file
// is one of a TarWriter, not compressed, and of another program's it refuses
// those whose records lie in pieces.
func indexRecords(index []recordPlace, shard string, all []byte) ([]recordPlace, error) {
	keys := map[string]bool{}
	stored := bytes.NewReader(all)
	begin := int64(0)
	for t := tar.NewReader(stored); ; {
		h, err := t.Next()
		if err == io.EOF {
			return index, nil
		}
		if err != nil {
			return nil, err
		}
		dir, base := path.Split(h.Name)
		base, _, _ = strings.Cut(base, ".")
		if key := dir + base; begin == 0 || index[len(index)-1].Key != key {
			if keys[key] {
				return nil, fmt.Errorf("%s: the files of record %s are not neighbors", shard, key)
			}
			keys[key] = true
			index = append(index, recordPlace{Shard: shard, Key: key, Begin: begin})
		}
		data := stored.Size() - int64(stored.Len()) // where the file's data begin
		begin = data + (h.Size+511)/512*512         // whole blocks
		p := &index[len(index)-1]
		p.End = begin
		p.Sum = crc32.ChecksumIEEE(all[p.Begin:min(begin+512, stored.Size())])
	}
}

// remoteRecord requests the bytes of a record, and reads its files.
func remoteRecord(ctx context.Context, client *http.Client, origin string, p recordPlace) (
	r dataloader.Record, err error,
) {
	address := origin + (&url.URL{Path: "/" + p.Shard}).EscapedPath()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return r, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Begin, p.End+511))
	resp, err := client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	// A server that knows no ranges would send all.
	got, err := io.ReadAll(io.LimitReader(resp.Body, p.End-p.Begin+513))
	if err == nil && crc32.ChecksumIEEE(got) != p.Sum {
		err = errors.New("other bytes than those of the index")
	}
	if err != nil {
		return r, fmt.Errorf("%s of %s: %s: %w", p.Key, p.Shard, resp.Status, err)
	}
	r.Key, r.Shard = p.Key, p.Shard
	for t := tar.NewReader(bytes.NewReader(got[:p.End-p.Begin])); ; {
		h, err := t.Next()
		if err == io.EOF {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return r, err
		}
		field := strings.TrimPrefix(h.Name[len(p.Key):], ".")
		r.Files = append(r.Files, dataloader.File{Name: field, Data: data})
	}
}

// Records of remote tar files by index: a data set for Shuffle, Weighted or
// Subset, whose cursors fit any number of ranks. Nothing is downloaded before,
// but each record costs a request, so Tar is much faster. At 20 ms to the first
// byte a worker loads 40 records a second. Example_retry asks again.
func Example_remoteRecords() {
	shard := shardOf("cat.txt=purr", "cow.txt=moo") // a tar file with two records
	index, err := indexRecords(nil, "a.tar", shard)
	if err != nil {
		log.Fatal(err)
	}
	store := httptest.NewServer(http.FileServerFS(fstest.MapFS{"a.tar": {Data: shard}}))
	defer store.Close()
	// Each worker keeps its connection, where by default all but two would
	// connect anew for each record.
	const workers = 64
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: workers}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	get := func(ctx context.Context, i int) (dataloader.Record, error) {
		return remoteRecord(ctx, client, store.URL, index[i])
	}
	records := dataloader.Func(len(index), get)
	for i := range records.Len() { // or a loader with that number of Workers
		r, err := records.Get(context.Background(), i)
		fmt.Printf("%s: %s %v\n", r.Key, r.Get("txt"), err)
	}
	// Output:
	// cat: purr <nil>
	// cow: moo <nil>
}

// # Fixtures, which the Examples need, and a program does not

// shardOf returns a tar file of files, which are written "name=content".
func shardOf(files ...string) []byte {
	var shard bytes.Buffer
	w := tar.NewWriter(&shard)
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o444, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	return shard.Bytes()
}

// breaksAfter is a reader that yields data, and then what fail does.
func breaksAfter(data []byte, fail func() error) io.Reader {
	return io.MultiReader(bytes.NewReader(data),
		readerFunc(func([]byte) (int, error) { return 0, fail() }))
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
