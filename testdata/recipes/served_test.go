package recipes

// A server of batches, and its clients. The server makes the batches, and
// trainings elsewhere get them by HTTP, in Go or in Python (served.py). Batch k
// of an epoch is a pure function, so servers keep nothing that an answer
// depends on: any number of equal servers may stand behind a load balancer, and
// one that dies costs a request that is made again.
//
//	Example_servedBatches  the server: copy it, serveBatches, serveUntil, appendArray, arrayHeader
//	Example_servedToGo     a training in Go: copy servedBatches, batchClient with its methods,
//	                       newBatchClient, errServed, errRefused, cutArray, arrayHeader; the
//	                       Example itself, and go test, need the server, too
//	served.py              a training in PyTorch, or with NumPy alone: a file to import
//
// The import "dataloader" is the package's path in its own folder. In your
// project change it, for instance to "example.org/trainer/dataloader". If you
// copy the whole file, change its package line, too.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"dataloader"
)

// A server of batches, for Example_servedToGo and for PyTorch (served.py). A
// batch is the body of a response: encode makes arrays of the samples, in
// NumPy's format, which every language reads. SIGTERM ends the server, when it
// has answered the requests under way. Put in your own data, encode, options
// and version. Change the version whenever a sample would be decoded otherwise,
// or a batch encoded: clients of this version then get errors instead of other
// data. Go's version and the machine's are in it because image/jpeg and
// floating-point sums may differ between them.
//
// A server keeps nothing from one request to the next, so nothing is lost if it
// is killed. A Get that hangs, and does not watch its context, keeps a place of
// atOnce: see Example_hangingSample. There is no authentication and no TLS:
// listen on localhost, or behind a proxy that has them. Copy serveBatches,
// serveUntil, appendArray and arrayHeader, too.
func Example_servedBatches() {
	data := dataloader.Func(100, func(ctx context.Context, i int) (int64, error) {
		if i == 99 {
			return 0, errors.New("a truncated file")
		}
		return int64(i), nil
	})
	encode := func(dst []byte, samples []int64) ([]byte, error) {
		pixels := make([]float32, 3*len(samples))
		dst, err1 := appendArray(dst[:0], []int{len(samples), 3}, pixels)
		dst, err2 := appendArray(dst, []int{len(samples)}, samples)
		return dst, errors.Join(err1, err2)
	}
	opts := dataloader.Options{BatchSize: 32, Shuffle: true, Seed: 1, DataVersion: "2026-11-24"}
	version := fmt.Sprint("1 ", runtime.Version(), " ", runtime.GOARCH)
	handler, err := serveBatches(data, encode, opts, version, runtime.GOMAXPROCS(0))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // in a program a port of your own
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ended := make(chan error) // a program calls serveUntil, and ends
	go func() { ended <- serveUntil(ctx, listener, handler) }()

	for _, path := range []string{"ready", "batch/1", "batch/2", "batch/7", "batch/x"} {
		resp, err := http.Get(fmt.Sprintf("http://%s/%s", listener.Addr(), path))
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("%s: %d, %d bytes: %.50q\n", path, resp.StatusCode, len(body), body)
	}
	stop() // stands for the signal
	fmt.Println(<-ended)
	// Output:
	// ready: 200, 1 bytes: "4"
	// batch/1: 200, 896 bytes: "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False,"
	// batch/2: 500, 57 bytes: "dataloader: epoch 0, batch 2, sample 99: a truncat"
	// batch/7: 200, 288 bytes: "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False,"
	// batch/x: 400, 28 bytes: "a step is a number from 0 on"
	// <nil>
}

// serveBatches returns the handler of a server: the steps of a training at
// /batch/{step}, made of data by encode, and, at /ready, the number of steps in
// an epoch. At most atOnce batches are in memory, in the making or on their
// way; whoever comes later waits. More than one for each CPU helps if loads
// wait for a disk or a network. Batch has all of them in Worker -1, so keep
// decoders in a sync.Pool.
//
// Every answer has a tag, in the header Batch-Tag: a hash of all that a batch
// depends on. An ETag would not do, because proxies that compress make it weak,
// or drop it. A sampler of your own needs a String method that describes it. An
// OrderFunc is described by its length only: change version with it. A request
// with another tag in Batch-Tag is refused (412). Other answers are 400 if step
// is not a number from 0 on, 404 if there are no samples, and 500 with the
// error's text if the batch failed.
//
// OnError and Unordered are refused. Which samples OnError drops depends on
// which server had how many errors, so that a batch would depend on the server,
// and a batch that has lost all its samples fails for ever.
func serveBatches[T any](
	data dataloader.Dataset[T], encode dataloader.Collate[T, []byte], opts dataloader.Options,
	version string, atOnce int,
) (http.Handler, error) {
	if opts.OnError != nil || opts.Unordered {
		return nil, errors.New("a server has neither OnError nor Unordered")
	}
	for _, order := range []any{opts.Sampler, opts.BatchSampler} {
		if _, ok := order.(fmt.Stringer); order != nil && !ok {
			return nil, fmt.Errorf("%T needs a String method, for the tag", order)
		}
	}
	loader, err := dataloader.New(data, encode, opts)
	if err != nil {
		return nil, err
	}
	tag := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d %t %v %v %q %d %d %t %v %d %q",
		data.Len(), opts.Shuffle, opts.Sampler, opts.BatchSampler, opts.DataVersion, opts.Seed,
		opts.BatchSize, opts.DropLast, opts.Rank, opts.Tail, version)))

	// answer has a minute to send a response. The server's WriteTimeout would
	// count waiting and loading, too, and the deadline of the response before
	// would stay.
	answer := func(w http.ResponseWriter, status int, body []byte) error {
		c, limit := http.NewResponseController(w), time.Now().Add(time.Minute)
		c.SetWriteDeadline(limit)
		c.SetReadDeadline(limit) // of a body that may never come
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Header().Set("Batch-Tag", tag)
		w.WriteHeader(status)
		_, err := w.Write(body)
		return err
	}
	places := make(chan struct{}, max(1, atOnce))
	batch := func(ctx context.Context, w http.ResponseWriter, step int) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done(): // the client has gone away
			return
		}
		batch, err := loader.Batch(ctx, step/loader.Len(), step%loader.Len())
		if err != nil {
			answer(w, http.StatusInternalServerError, []byte(err.Error()))
			return
		}
		// The memory of a response that was cut short goes to the garbage
		// collector, because HTTP/2 may still use it.
		if answer(w, http.StatusOK, batch) == nil {
			loader.Recycle(batch)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, []byte(strconv.Itoa(loader.Len())))
	})
	mux.HandleFunc("GET /batch/{step}", func(w http.ResponseWriter, r *http.Request) {
		step, err := strconv.Atoi(r.PathValue("step"))
		switch {
		case err != nil || step < 0:
			answer(w, http.StatusBadRequest, []byte("a step is a number from 0 on"))
		case loader.Len() == 0:
			answer(w, http.StatusNotFound, []byte("there are no samples"))
		default:
			batch(r.Context(), w, step)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if match := r.Header.Get("Batch-Tag"); match != "" && match != tag {
			answer(w, http.StatusPreconditionFailed, []byte("another order, or another version"))
			return
		}
		mux.ServeHTTP(w, r)
	}), nil
}

// serveUntil serves until ctx has ended. The requests under way then have 20
// seconds.
func serveUntil(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := server.Shutdown(limit)
	server.Close() // what is left is cut, and its client asks another server
	return err
}

// appendArray appends an array of the given shape, whose elements stand in
// parts, in NumPy's format: a header, and the elements from a multiple of 64
// bytes on. E is a type of fixed size, so int64, not int. binary.Append writes
// little-endian on every machine.
func appendArray[E any](dst []byte, shape []int, parts ...[]E) (_ []byte, err error) {
	count := 0
	for _, part := range parts {
		count += len(part)
	}
	want := 1
	for _, n := range shape {
		want *= n
	}
	if count != want {
		return dst, fmt.Errorf("the shape %d does not fit %d elements", shape, count)
	}
	header := arrayHeader[E](shape)
	begin := len(dst) + 10
	end := (begin + len(header) + 1 + 63) / 64 * 64 // of the header
	dst = append(dst, "\x93NUMPY\x01\x00"...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(end-begin))
	dst = fmt.Appendf(dst, "%-*s\n", end-begin-1, header)
	for _, part := range parts {
		if dst, err = binary.Append(dst, binary.LittleEndian, part); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// arrayHeader describes an array as NumPy does. NumPy's letter of a type is the
// first of Go's name of it.
func arrayHeader[E any](shape []int) string {
	axes := ""
	for _, n := range shape {
		axes += strconv.Itoa(n) + ","
	}
	e := reflect.TypeFor[E]()
	return fmt.Sprintf("{'descr': '<%.1s%d', 'fortran_order': False, 'shape': (%s), }",
		e.Kind(), e.Size(), axes)
}

// cutArray cuts the first array off body, into the memory of dst.
func cutArray[E any](dst dataloader.Tensor[E], body []byte) (_ dataloader.Tensor[E], rest []byte,
	err error) {
	bad := func() (dataloader.Tensor[E], []byte, error) {
		return dst, body, fmt.Errorf("no array of %v: %.100q", reflect.TypeFor[E](), body)
	}
	if len(body) < 10 {
		return bad()
	}
	end := 10 + int(binary.LittleEndian.Uint16(body[8:]))
	if len(body) < end {
		return bad()
	}
	header := string(body[10:end])
	_, axes, _ := strings.Cut(header, "'shape': (")
	axes, _, _ = strings.Cut(axes, ")")
	dst.Shape = dst.Shape[:0]
	count := 1 // of the shape (), which is a number
	for axes != "" {
		var axis string
		axis, axes, _ = strings.Cut(axes, ",")
		n, err := strconv.Atoi(axis)
		if err != nil || n < 0 || n > len(body) || count*n > len(body) {
			return bad()
		}
		dst.Shape = append(dst.Shape, n)
		count *= n
	}
	if !strings.HasPrefix(header, arrayHeader[E](dst.Shape)) {
		return bad()
	}
	dst.Data = slices.Grow(dst.Data[:0], count)[:count]
	n, err := binary.Decode(body[end:], binary.LittleEndian, dst.Data)
	return dst, body[end+n:], err
}

// A training whose batches come from servers, of which any number may stand
// behind one address. A sample of the loader is a step of the training, so the
// checkpoint is the step, with the servers' tag, and At resumes. Several ranks
// get the steps in turn: on rank 1 of 4 its own step 10 is the servers' step
// 41. Put in your own decode and train.
//
// A batch that the servers cannot make is a SampleError, which a loop may skip.
// Any other error ends the loop, for example if the servers have another order:
// if it could be skipped, a loop would skip every batch. Copy everything from
// the type batchClient to its method try, with newBatchClient, servedBatches,
// errServed and errRefused, and cutArray and arrayHeader, which stand above.
func Example_servedToGo() {
	data := dataloader.Func(20, func(ctx context.Context, i int) (int64, error) {
		if i == 13 {
			return 0, errors.New("a truncated file")
		}
		return int64(i), nil
	})
	encode := func(dst []byte, samples []int64) ([]byte, error) {
		return appendArray(dst[:0], []int{len(samples)}, samples)
	}
	opts := dataloader.Options{BatchSize: 4, Shuffle: true, Seed: 1}
	handler, err := serveBatches(data, encode, opts, "1", 2)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(handler) // in a program elsewhere, or many
	defer server.Close()

	decode := func(dst dataloader.Tensor[int64], body []byte) (dataloader.Tensor[int64], error) {
		batch, _, err := cutArray(dst, body) // a second array follows in the rest
		return batch, err
	}
	type checkpoint struct {
		Sum  int64 // the weights
		Step int
		Tag  string
	}
	// train resumes a checkpoint, and goes on until step last.
	train := func(c checkpoint, last int) checkpoint {
		ctx, stop := context.WithCancelCause(context.Background())
		defer stop(nil)
		client := newBatchClient(server.URL, c.Tag, 4, stop)
		client.pause = time.Millisecond // only here
		loader, err := servedBatches(ctx, client, decode, dataloader.Options{Workers: 4})
		if err != nil {
			log.Fatal(err)
		}
		c.Tag = client.tag
		at := loader.At(0, c.Step)
		for batch, err := range loader.Run(ctx, &at) {
			switch {
			case errors.As(err, new(*dataloader.SampleError)):
				fmt.Println("skipped: step", c.Step, errors.Is(err, errServed))
			case err != nil:
				log.Fatal(err)
			default:
				for _, x := range batch.Data {
					c.Sum += x
				}
				fmt.Println("step", c.Step, batch.Data)
				loader.Recycle(batch)
			}
			if c.Step++; c.Step == last {
				break
			}
		}
		return c
	}
	half := train(checkpoint{}, 3)
	rest := train(half, 6)
	fmt.Println("sum", rest.Sum)
	// Output:
	// step 0 [5 15 1 17]
	// step 1 [19 7 10 11]
	// step 2 [4 9 0 2]
	// skipped: step 3 true
	// step 4 [18 6 12 8]
	// step 5 [18 1 9 8]
	// sum 180
}

// A batchClient gets batches from the servers behind an address.
type batchClient struct {
	url   string
	tag   string                  // that the servers must have
	steps int                     // in an epoch, known since servedBatches
	stop  context.CancelCauseFunc // ends the loop that waits for batches

	http  *http.Client
	pause time.Duration // before the second attempt at a request; then twice, three times this
}

var (
	errRefused = errors.New("the server refuses")               // also if asked again
	errServed  = errors.New("the server cannot make the batch") // the only error to skip
)

// newBatchClient returns a client that makes up to workers requests at once. If
// tag is empty, that of the first server to answer is taken. stop is that of
// the loop's context.
func newBatchClient(
	url, tag string, workers int, stop context.CancelCauseFunc,
) *batchClient {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = workers // the default closes all but two after each request
	transport.DisableCompression = true
	return &batchClient{url, tag, 0, stop, &http.Client{Transport: transport}, time.Second}
}

// servedBatches returns a loader of the batches of a client's servers, whose
// steps are its samples. Of opts set only Workers, Prefetch and Rank. The
// number of steps is larger than any training needs: the cursors contain it, so
// it must never change.
func servedBatches[B any](
	ctx context.Context, c *batchClient, decode func(dst B, body []byte) (B, error),
	opts dataloader.Options,
) (*dataloader.DataLoader[B], error) {
	bodies := sync.Pool{New: func() any { return new(bytes.Buffer) }}
	var ready bytes.Buffer
	err := c.get(ctx, "/ready", &ready)
	if err != nil {
		return nil, err
	}
	if c.steps, err = strconv.Atoi(ready.String()); err != nil {
		return nil, err
	}
	load := func(ctx context.Context, dst B, steps []int) (B, error) {
		body := bodies.Get().(*bytes.Buffer)
		defer bodies.Put(body)
		err := c.get(ctx, fmt.Sprint("/batch/", steps[0]), body)
		if err == nil {
			dst, err = decode(dst, body.Bytes())
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, errServed) {
			c.stop(err)
		}
		return dst, err
	}
	return dataloader.NewBatchFunc(1_000_000_000, load, opts)
}

// get makes up to ten attempts at a request, with pauses of 1 to 9 seconds: 45
// in all, in which a server can start anew. After a failure it takes another
// connection, which may lead to another server.
func (c *batchClient) get(ctx context.Context, path string, body *bytes.Buffer) (err error) {
	for attempt := range 10 {
		select {
		case <-time.After(c.pause * time.Duration(attempt)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err = c.try(ctx, path, body)
		if err == nil || errors.Is(err, errRefused) || errors.Is(err, errServed) && attempt == 2 {
			return err
		}
		c.http.CloseIdleConnections()
	}
	return err
}

// try makes a request, which may take a minute: waiting, loading and reading. A
// response without the tag is not from a server, but from something before it.
// A response that was cut short is an error of ReadFrom, as it has a length.
func (c *batchClient) try(ctx context.Context, path string, body *bytes.Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", c.url+path, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if c.tag != "" {
		request.Header.Set("Batch-Tag", c.tag)
	}
	resp, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body.Reset()
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	tag := resp.Header.Get("Batch-Tag")
	if c.tag == "" && resp.StatusCode == http.StatusOK { // of ready, before any batch
		c.tag = tag
	}
	ours := tag != "" && tag == c.tag
	if ours && resp.StatusCode == http.StatusOK {
		return nil
	}
	text := fmt.Sprintf("%s: %s: %.1000s", path, resp.Status, body.Bytes())
	switch {
	case tag != "" && resp.StatusCode/100 == 4:
		return fmt.Errorf("%w: %s", errRefused, text)
	case ours && resp.StatusCode == http.StatusInternalServerError:
		return fmt.Errorf("%w: %s", errServed, text)
	}
	return fmt.Errorf("no server answers: %s", text)
}
