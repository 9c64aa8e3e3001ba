package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	_ "image/gif"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// A Record is one sample of a tar shard: the files whose names share a key, which stand next to each other in the
// archive, as in WebDataset. The key is the name up to the first dot after the last slash, and the rest is the
// field, in lower case:
//
//	train/0001.jpg      key train/0001, field jpg
//	train/0001.seg.png  key train/0001, field seg.png
//
// Left out, without an end to the record, are folders, symbolic links and devices, files without a dot or with
// nothing before it (.hidden, ._x), and names whose first element is like __meta__.
type Record struct {
	Key   string
	Shard string // the name of the shard, as it was given
	Files []File // in the order of the archive; Name is the field
}

// Get returns the content of a field, or nil if the record has no such field. An empty file is not nil.
func (r Record) Get(field string) []byte {
	for _, f := range r.Files {
		if f.Name == field {
			return f.Data
		}
	}
	return nil
}

// splitName returns the key and the field of a file's name, if it has them.
func splitName(name string) (key, field string, ok bool) {
	top, _, _ := strings.Cut(name, "/")
	meta := len(top) >= 4 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__")
	base := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[base:], '.')
	if dot <= 0 || meta {
		return "", "", false
	}
	return name[:base+dot], strings.ToLower(name[base+dot+1:]), true
}

// An Opener opens a shard for reading from a byte offset on, which is 0 but when a plain archive is read from a
// cursor. What it returns is closed before the range over the stream is over; if it is an io.Seeker too, what need
// not be read is skipped.
type Opener func(ctx context.Context, name string, offset int64) (io.ReadCloser, error)

// TarOptions say how Tar reads. The zero value reads everything, in the order given.
type TarOptions struct {
	Shuffle bool     // another order of the shards in each epoch, that of Random
	Seed    uint64   // of the shuffle
	Shard   Shard    // this rank's part of the shards; dealt out after the shuffle
	Fields  []string // read only these; nil: all. A record that has none of them comes without files.
	Open    Opener   // nil: Open
	MaxFile int64    // the most bytes for which memory is taken: of a file, and of the files of a record together; 0: 1 GiB
}

// defaultMaxFile is TarOptions.MaxFile if it is not given.
const defaultMaxFile = 1 << 30

// A TarError says what is wrong with a shard, and where. Entry is the last entry whose header was read, empty before the
// first and after the end marker. Offset is in the archive when it is unpacked; headers begin there, those of Entry or
// those that come next. Err is the cause. Of an address, Shard has neither password nor query, nor has an error of Open.
type TarError struct {
	Shard, Entry string
	Offset       int64
	Err          error
}

// Error names shard, entry and offset.
func (e *TarError) Error() string {
	return fmt.Sprintf("dataloader: shard %q, entry %q, offset %d: %v", e.Shard, e.Entry, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *TarError) Unwrap() error { return e.Err }

// Tar is the stream of the records in tar shards, plain or packed with gzip or bzip2, whatever their names end in. It
// keeps one record and one buffer in memory. Its cursors are a shard and a byte offset, where a resume goes
// on: with a seek or a request for a range in a plain shard, by unpacking again in one that is packed. They fit the
// same shards elsewhere too: of names, the base is compared, without a query.
//
// A shard that is cut, damaged or cannot be opened gives one error, a TarError, after the records before it, and the
// next shard follows. A record of which one file cannot be given (a field that comes twice, a hard link, more than
// MaxFile) is one error too, and the next record follows. No part of such a record is given. A file with holes that is
// larger than MaxFile ends its shard.
//
// To read k shards at once, in an order that does not matter, Mix the streams of Shard{0, k} to Shard{k-1, k}, each
// with Prefetch. To shuffle, open the shards in random order (TarOptions.Shuffle) and add Stream.Shuffle. Fewer
// shards than ranks are an error; deal records instead, with Stream.Shard.
//
// PyTorch: webdataset.WebDataset, and the TarDataset of the DataLoader's RFC.
func Tar(shards []string, opts TarOptions) (Stream[Record], error) {
	shards, fields := slices.Clone(shards), slices.Clone(opts.Fields)
	for i, f := range fields {
		fields[i] = strings.ToLower(f)
	}
	opts.Fields = fields
	opts.MaxFile = cmp.Or(opts.MaxFile, defaultMaxFile)
	if opts.Open == nil {
		opts.Open = Open
	}
	rank, err := opts.Shard.check()
	switch {
	case err != nil:
		return nil, fmt.Errorf("dataloader: Tar: %w", err)
	case len(shards) == 0:
		return nil, errors.New("dataloader: Tar: there are no shards")
	case slices.Contains(shards, ""):
		return nil, fmt.Errorf("dataloader: Tar: shard %d has an empty name", slices.Index(shards, ""))
	case len(shards) < rank.Count:
		return nil, fmt.Errorf("dataloader: Tar: %d shards are too few for %d ranks: leave TarOptions.Shard out and deal records, with Stream.Shard",
			len(shards), rank.Count)
	case opts.MaxFile < 0:
		return nil, fmt.Errorf("dataloader: Tar: MaxFile is %d, must not be negative", opts.MaxFile)
	}
	order := Sequential(len(shards))
	if opts.Shuffle {
		order = Random(len(shards), opts.Seed)
	}
	digest := uint64(len(shards)) // tells cursors of other shards
	for _, name := range shards {
		for _, c := range []byte(path.Base(redact(name))) {
			digest = hash(digest, uint64(c))
		}
		digest = hash(digest, 0)
	}
	by := fmt.Sprintf("Tar(shards #%x, %s, shard %d of %d)", digest, describe(order), rank.Index, rank.Count)
	return streamOf(func(ctx context.Context, from Cursor, yield func(Item[Record]) bool) error {
		var at tarState
		if err := from.fit(by, &at.By, &at); err != nil {
			return err
		}
		if at.N < 0 || at.Offset < 0 {
			return from.refused("its state is damaged: %+v", at)
		}
		turn, pos := order.Order(from.Epoch), from.Pos
		mine := rank.of(len(shards))
		if at.N > mine {
			return from.refused("its state is damaged: there are only %d shards, not %d", mine, at.N)
		}
		for ; at.N < mine; at = (tarState{N: at.N + 1}) {
			name := shards[turn(rank.nth(at.N))]
			if !readShard(ctx, name, &opts, at, func(rec Record, err error, next tarState) bool {
				next.By = by
				pos++
				return yield(Item[Record]{rec, err, Cursor{from.Epoch, pos, &next}})
			}) {
				return nil
			}
		}
		return nil
	}), nil
}

// A tarState is the State in the cursors of Tar.
type tarState struct {
	By     string `json:"by"`
	N      int    `json:"n,omitempty"`      // the shards of this rank that were read to their end
	Offset int64  `json:"offset,omitempty"` // in the next shard
	Packed bool   `json:"packed,omitempty"` // whether that counts unpacked bytes
}

// readShard yields what comes in a shard from at on, each with the stage after it, and reports whether to go on.
func readShard(ctx context.Context, name string, opts *TarOptions, at tarState, yield func(rec Record, err error, next tarState) bool) bool {
	s := &tarShard{ctx: ctx, name: name, max: opts.MaxFile, fields: map[string]bool{}}
	if err := s.open(opts.Open, at); err != nil {
		return yield(Record{}, err, tarState{N: at.N + 1})
	}
	defer s.file.Close()
	s.take = func(rec *Record, field string) error {
		if opts.Fields != nil && !slices.Contains(opts.Fields, field) {
			return nil
		}
		data, err := s.read()
		rec.Files = append(rec.Files, File{field, data})
		return err
	}
	for {
		rec, err := s.next()
		switch {
		case err == io.EOF:
			return true
		case s.failed:
			return yield(Record{}, err, tarState{N: at.N + 1})
		case !yield(rec, err, tarState{N: at.N, Offset: s.at.head, Packed: s.packed}):
			return false
		}
	}
}

// A tarShard is an archive as it is read, from front to back. An archive is blocks of 512 bytes: for each entry a header,
// or several if its name is long, and its data, filled up with zeros; and at the end two blocks of zeros.
//
//	head     data                head     data
//	│ header │ data ······ 000 │ │ header │ data ·· 000 │ 000000 │ 000000 │
//	│ a.txt  │                 │ │ a.cls  │            │   end marker    │
//
// A record is over when the header of another record's file, or the end marker, has been read. So the shard is always one
// header ahead of the records it has given, and the offset of that header, at.head, is where a resume goes on.
type tarShard struct {
	ctx    context.Context
	name   string
	file   io.ReadCloser
	in     *bufio.Reader // of the archive, unpacked
	packed bool
	pos    int64     // of in
	start  *tarState // where to begin, until that is done

	at     tarEntry // the last one whose headers were read
	left   int64    // of its data, still to be read or skipped
	ahead  bool     // at belongs to the next record
	ended  bool     // the end marker was read
	failed bool     // nothing more can be read
	width  int      // how many files the last record had

	// take is called for each file of a record, and may read it. Its error makes the record unusable.
	take   func(rec *Record, field string) error
	fields map[string]bool     // of the record
	taken  int64               // bytes of the record
	max    int64               // of them
	files  map[string]tarEntry // what hard links may link to, unless nil
}

// A tarEntry is what an archive's headers say about one entry.
type tarEntry struct {
	name   string
	kind   byte        // tar.TypeReg, tar.TypeLink, or 0 for what has no part in a record
	link   string      // what a hard link is a link to
	head   int64       // where its headers begin, of which there may be several
	data   int64       // where its data begins, after the header of 512 bytes that is its own
	size   int64       // of the file
	sparse *tar.Reader // reads a file that is stored without its holes; else nil
}

const (
	tarBlock  = 512
	tarBuffer = 256 << 10 // in which headers and small files are read
)

// errCut is the error of an archive without an end.
var errCut = fmt.Errorf("the archive ends without an end marker, it has been cut: %w", io.ErrUnexpectedEOF)

// open opens the shard, to be read from at on.
func (s *tarShard) open(open Opener, at tarState) (err error) {
	if !at.Packed {
		s.pos = at.Offset
	}
	s.start, s.at.head = &at, s.pos
	if s.file, err = try(func() (io.ReadCloser, error) { return open(s.ctx, s.name, s.pos) }); err == nil && s.file == nil {
		err = errors.New("the Opener returned nothing to read")
	}
	if err != nil {
		return s.fault(err)
	}
	s.in = bufio.NewReaderSize(s.file, tarBuffer)
	return nil
}

// begin reads up to where next is to begin.
func (s *tarShard) begin() (err error) {
	at := s.start
	s.start = nil
	if s.pos == 0 {
		err = s.unpack()
	}
	if err == nil {
		err = s.discard(at.Offset - s.pos)
	}
	return err
}

// unpack finds out by its first bytes whether the shard is packed, and with what.
func (s *tarShard) unpack() error {
	magic, err := s.in.Peek(10)
	if err != nil && err != io.EOF {
		return err
	}
	begins := func(with string) bool { return strings.HasPrefix(string(magic), with) }
	var r io.Reader
	switch {
	case begins("\x1f\x8b"):
		r, err = gzip.NewReader(s.in)
	case begins("BZh") && len(magic) == 10 && string(magic[4:]) == "1AY&SY":
		r, err = bzip2.NewReader(s.in), nil
	case begins("\xfd7zXZ\x00"):
		return errors.New("it is packed with xz, which cannot be read: use gzip, bzip2 or a plain tar")
	case begins("\x28\xb5\x2f\xfd"):
		return errors.New("it is packed with zstd, which cannot be read: use gzip, bzip2 or a plain tar")
	default:
		return nil
	}
	s.packed, s.in = true, bufio.NewReaderSize(r, tarBuffer)
	return err
}

// fault is an error of the shard where it stands.
func (s *tarShard) fault(err error) error {
	return &TarError{redact(s.name), s.at.name, s.at.head, err}
}

// fail is a fault after which nothing more can be read.
func (s *tarShard) fail(err error) error {
	s.failed = true
	return s.fault(err)
}

// next reads the next record, or returns io.EOF after the last if all is well. Another error is about this record
// alone, unless the shard has failed.
func (s *tarShard) next() (rec Record, err error) {
	defer func() {
		if r := recover(); r != nil { // of the Opener's reader
			rec, err = Record{}, s.fail(&PanicError{r, debug.Stack()})
		}
	}()
	if s.start != nil {
		if err = s.begin(); err != nil {
			return rec, s.fail(err)
		}
	}
	clear(s.fields)
	s.taken = 0
	var bad error // what is wrong with this record
	found := false
	for err == nil && !s.ended {
		if !s.ahead {
			if err = s.advance(); err != nil {
				break
			}
		}
		key, field, ok := splitName(s.at.name)
		if s.ahead = false; !ok || s.at.kind == 0 {
			continue
		}
		if !found {
			found, rec = true, Record{key, s.name, make([]File, 0, s.width)}
		}
		if s.ahead = key != rec.Key; s.ahead {
			break
		}
		if bad == nil {
			if s.fields[field] {
				bad = s.fault(fmt.Errorf("record %q has another field %q", key, field))
			} else if bad = s.take(&rec, field); s.failed {
				err, bad = bad, nil
			}
			s.fields[field] = true
		}
	}
	s.width = len(rec.Files)
	switch {
	case s.failed && found:
		if bad != nil {
			err = fmt.Errorf("%w; then %w", bad, err)
		}
		return Record{}, fmt.Errorf("%w; record %q, which may lack files, is left out", err, rec.Key)
	case s.failed:
		return Record{}, err
	case !found:
		return Record{}, s.finish()
	case bad != nil:
		return Record{}, bad
	}
	return rec, nil
}

// advance goes on to the next entry, or returns io.EOF at the end marker.
func (s *tarShard) advance() error {
	if s.ctx.Err() != nil {
		return s.fail(context.Cause(s.ctx))
	}
	if err := s.skip(); err != nil {
		return s.fail(err)
	}
	s.at.head, s.at.sparse = s.pos, nil
	block, err := s.in.Peek(tarBlock)
	switch {
	case len(block) == 0 && err == io.EOF && s.pos == 0:
		return s.fail(errors.New("the archive is empty"))
	case err == io.EOF:
		return s.fail(errCut)
	case err != nil:
		return s.fail(err)
	}
	if name, size, ok := parseHeader(block); ok {
		s.at = tarEntry{name: name, kind: tar.TypeReg, head: s.pos, data: s.pos + tarBlock, size: size}
		s.in.Discard(tarBlock)
		s.pos, s.left = s.at.data, size
	} else if err := s.readHeaders(isZero(block)); err != nil {
		return err
	}
	if s.files != nil && s.at.kind == tar.TypeReg {
		s.files[s.at.name] = s.at
	}
	return nil
}

// readHeaders reads an entry's headers whatever they are. marker says that they begin with zeros, as the end marker does.
//
// It lets archive/tar do so, which reads no byte more than the headers: so pos is then where the data begins.
func (s *tarShard) readHeaders(marker bool) error {
	r := tar.NewReader(s)
	h, err := r.Next()
	switch {
	case err == io.EOF && marker:
		s.ended, s.at.name = true, ""
		return err
	case err == io.EOF: // to archive/tar, a cut between two entries is an end like any other
		return s.fail(errCut)
	case err != nil && err != tar.ErrInsecurePath: // no name is used as a path here
		return s.fail(fmt.Errorf("the headers that come next: %w", err))
	}
	s.at = tarEntry{name: h.Name, link: h.Linkname, head: s.at.head, data: s.pos, size: h.Size}
	s.left = min(h.Size, 1<<62) // more than there ever is
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		s.at.kind = tar.TypeReg
	case tar.TypeLink:
		s.at.kind = tar.TypeLink
		s.left = 0
	case tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		s.left = 0 // whatever the header says
	}
	holes := h.Typeflag == tar.TypeGNUSparse
	for key := range h.PAXRecords {
		holes = holes || strings.HasPrefix(key, "GNU.sparse.")
	}
	if holes {
		if s.at.sparse = r; h.Size > s.max { // to skip it would mean to read it
			return s.fail(s.tooLarge())
		}
	}
	return nil
}

// tooLarge is the error of an entry for which no memory is taken.
func (s *tarShard) tooLarge() error {
	return fmt.Errorf("its %d bytes make the record larger than MaxFile, %d", s.at.size, s.max)
}

// Read reads from the archive. The buffer passes large reads on, also if nothing comes, so they are counted here.
func (s *tarShard) Read(p []byte) (int, error) {
	for range 100 {
		if n, err := s.in.Read(p); n > 0 || err != nil || len(p) == 0 {
			s.pos += int64(n)
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// read reads the file that the shard is at.
func (s *tarShard) read() ([]byte, error) {
	if s.at.kind == tar.TypeLink {
		return nil, s.fault(fmt.Errorf("it is a hard link to %q, which a stream cannot go back to: use OpenTar, or tar with --hard-dereference", s.at.link))
	}
	if s.at.size > s.max-s.taken {
		return nil, s.fault(s.tooLarge())
	}
	s.taken += s.at.size
	data := make([]byte, s.at.size)
	var err error
	if s.at.sparse != nil {
		_, err = io.ReadFull(s.at.sparse, data)
	} else {
		var n int
		n, err = io.ReadFull(s, data)
		s.left -= int64(n)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, s.fail(err)
	}
	return data, nil
}

// skip passes over what is left of the entry, and what fills up its last block.
func (s *tarShard) skip() error {
	if s.at.sparse != nil {
		if _, err := io.Copy(io.Discard, s.at.sparse); err != nil {
			return err
		}
		s.left = 0
	}
	n := s.left + -(s.pos+s.left)&(tarBlock-1)
	s.left = 0
	return s.discard(n)
}

// discard passes over n bytes: if they are many and the file lets it, without reading them.
func (s *tarShard) discard(n int64) error {
	if file, ok := s.file.(io.Seeker); ok && !s.packed && n > int64(s.in.Buffered())+tarBuffer {
		if _, err := file.Seek(n-int64(s.in.Buffered()), io.SeekCurrent); err == nil { // a pipe's Seek fails
			s.in.Reset(s.file)
			s.pos += n
			return nil
		}
	}
	for n > 0 {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		d, err := s.in.Discard(int(min(n, tarBuffer)))
		s.pos += int64(d)
		if n -= int64(d); err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
	}
	return nil
}

// finish reads the rest of the shard, which must be zeros, so that what unpacks it checks its sum, and what
// fetches it the length. It returns io.EOF if all is well.
func (s *tarShard) finish() error {
	for s.ctx.Err() == nil {
		rest, err := s.in.Peek(max(1, s.in.Buffered()))
		if !isZero(rest) {
			return s.fail(errors.New("there is data after the end marker, perhaps another archive, which is not read"))
		}
		s.in.Discard(len(rest))
		if err == io.EOF {
			return err
		} else if err != nil {
			return s.fail(err)
		}
	}
	return s.fail(context.Cause(s.ctx))
}

func isZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// parseHeader reads the header of a regular file that says all in one block, as nearly all do. It is several times faster
// than archive/tar, to which it leaves whatever looks unusual, and agrees with it on the rest.
func parseHeader(b []byte) (name string, size int64, ok bool) {
	file, size, ok := basics(b)
	sum, good := octal(b[148:156])
	ok = ok && good && sum == checksum(b)
	for _, field := range [][]byte{b[100:108], b[108:116], b[116:124], b[136:148]} { // mode, uid, gid, mtime
		_, good := octal(field)
		ok = ok && good
	}
	switch string(b[257:263]) {
	case posixMagic:
		_, major := octal(b[329:337])
		_, minor := octal(b[337:345])
		ok = ok && major && minor && string(b[508:]) != "tar\x00" // star has a shorter prefix
	case "ustar ":
		ok = ok && isZero(b[329:]) // no devices, times, or the prefix that Go once wrote
	}
	if !ok {
		return "", 0, false
	}
	return string(file), size, !(b[156] == 0 && bytes.HasSuffix(file, []byte{'/'})) // the old way to write a folder
}

// posixMagic tells headers that have a prefix to the name.
const posixMagic = "ustar\x00"

// basics reads what a header says about a regular file, if it is of one.
func basics(b []byte) (name []byte, size int64, ok bool) {
	size, ok = octal(b[124:136])
	name = untilNUL(b[:100])
	if string(b[257:263]) == posixMagic && b[345] != 0 {
		name = slices.Concat(untilNUL(b[345:500]), []byte{'/'}, name)
	}
	return name, size, ok && (b[156] == tar.TypeReg || b[156] == 0 || b[156] == tar.TypeCont)
}

// untilNUL is the text in a field of a header.
func untilNUL(field []byte) []byte {
	text, _, _ := bytes.Cut(field, []byte{0})
	return text
}

// octal reads a number as most headers have them.
func octal(field []byte) (n int64, ok bool) {
	i := 0
	for i < len(field) && field[i] == ' ' {
		i++
	}
	for ; i < len(field) && field[i]-'0' < 8; i++ {
		n = n<<3 | int64(field[i]-'0')
	}
	for ; i < len(field); i++ {
		if field[i] != ' ' && field[i] != 0 {
			return 0, false
		}
	}
	return n, true
}

// checksum adds up the bytes of a header, its own checksum counted as spaces.
func checksum(b []byte) int64 {
	sum := int64(0)
	for _, c := range b[:tarBlock] {
		sum += int64(c)
	}
	for _, c := range b[148:156] {
		sum += ' ' - int64(c)
	}
	return sum
}

// Open is the Opener for files and for http and https addresses. A connection that breaks, or gives nothing for a
// minute, is taken up again where it stopped, and an answer of 408, 429 or 5xx asked for again, after a wait that doubles from a
// second on, or is as long as Retry-After says, up to two minutes; six failures without a byte in between end it. It
// is an error if the object is not as long as was promised, or has changed between two requests. Other stores, and
// requests that need headers of their own, are for an Opener of the user's.
func Open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	return web{http.DefaultClient, 6, time.Minute, pause}.open(ctx, name, offset)
}

// A web says how to read from the web.
type web struct {
	client   *http.Client
	attempts int           // in a row, without a byte
	stall    time.Duration // after which a silent connection is given up
	wait     func(ctx context.Context, d time.Duration) error
}

// open opens a file, or what is at an address.
func (w web) open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if scheme, _, ok := strings.Cut(name, "://"); ok && !isWeb(name) {
		return nil, fmt.Errorf("%s: of addresses, Open knows http and https, not %s: give an Opener that does", redact(name), scheme)
	}
	if isWeb(name) {
		o := &webObject{web: w, ctx: ctx, address: name, pos: offset, size: -1}
		if err := o.connect(); err != nil {
			return nil, err
		}
		return o, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if offset != 0 {
		if _, err = file.Seek(offset, io.SeekStart); err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// isWeb reports whether name is an address rather than a file.
func isWeb(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}

// redact returns an address without what nobody else should see: user, password, and the query, which may be signed.
func redact(name string) string {
	scheme, _, ok := strings.Cut(name, "://")
	if !ok {
		return name
	}
	u, err := url.Parse(name)
	if err != nil {
		return scheme + "://(not an address)"
	}
	u.User, u.RawQuery, u.Fragment, u.ForceQuery = nil, "", "", false
	return u.String()
}

// A webObject is an object in the web as one sequence of bytes, whatever number of requests that takes.
type webObject struct {
	web
	ctx           context.Context
	address       string
	pos           int64  // of the next byte
	size          int64  // -1: not known
	tag, modified string // ETag and Last-Modified, which tell if the object has changed

	request  context.Context // of the request under way, which hang cancels
	cancel   context.CancelCauseFunc
	hang     *time.Timer   // runs while the server is waited for
	body     io.ReadCloser // of its answer; nil: there is none
	behind   int64         // bytes of body that come before pos
	failures int           // since the last byte
	over     error         // nothing more will come
}

// errStalled is the error of a server that gives nothing.
var errStalled = errors.New("the server has stalled")

// Read reads from the object, in as many requests as it takes.
func (o *webObject) Read(p []byte) (int, error) {
	for len(p) > 0 && o.pos != o.size && o.over == nil {
		if o.body == nil {
			if err := o.connect(); err != nil {
				return 0, err
			}
		}
		o.hang.Reset(o.stall)
		n, err := o.body.Read(p)
		o.hang.Stop()
		before := min(int64(n), o.behind)
		o.behind -= before
		n = copy(p, p[before:n])
		o.pos += int64(n)
		switch {
		case n > 0:
			o.failures = 0
			return n, nil
		case err == io.EOF && o.size < 0:
			return 0, err
		case err == io.EOF:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			if err = o.retry(err, 0); err != nil {
				return 0, err
			}
		}
	}
	if len(p) > 0 {
		return 0, cmp.Or(o.over, io.EOF)
	}
	return 0, nil
}

// Close ends the request that is under way.
func (o *webObject) Close() error {
	o.over = cmp.Or(o.over, os.ErrClosed)
	o.hangUp()
	return nil
}

// hangUp ends a request.
func (o *webObject) hangUp() {
	o.hang.Stop()
	o.cancel(nil)
	if o.body != nil {
		o.body.Close()
		o.body = nil
	}
}

// connect asks for the rest of the object until it comes.
func (o *webObject) connect() error {
	for {
		after, err := o.ask()
		if err == nil {
			return nil
		}
		if err = o.retry(err, after); err != nil {
			return err
		}
	}
}

// retry ends a request that has failed with err and waits, at least for the time after. If there is no use in asking
// again, it returns why; that is so too if after is negative.
func (o *webObject) retry(err error, after time.Duration) error {
	if context.Cause(o.request) == errStalled {
		err = errStalled
	}
	o.hangUp()
	if o.ctx.Err() != nil {
		return context.Cause(o.ctx)
	}
	o.failures++
	if after < 0 || o.failures == o.attempts {
		o.over = fmt.Errorf("get %s from byte %d, attempt %d: %w", redact(o.address), o.pos, o.failures, err)
		return o.over
	}
	wait := min(time.Second<<(o.failures-1), 30*time.Second)
	return o.wait(o.ctx, max(wait-rand.N(wait/2), min(after, 2*time.Minute)))
}

// ask sends a request for the rest of the object. If it fails, after is how long to wait at least, negative if
// there is no use in asking again.
func (o *webObject) ask() (after time.Duration, err error) {
	o.request, o.cancel = context.WithCancelCause(o.ctx)
	cancel := o.cancel
	o.hang = time.AfterFunc(o.stall, func() { cancel(errStalled) })
	defer o.hang.Stop()
	req, err := http.NewRequestWithContext(o.request, http.MethodGet, o.address, nil)
	if err != nil { // which may quote a password
		return -1, errors.New("this is not an address")
	}
	req.Close = true                              // nothing outlives the range
	req.Header.Set("Accept-Encoding", "identity") // or offsets would mean nothing
	if o.pos > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", o.pos))
		if strings.HasPrefix(o.tag, `"`) {
			req.Header.Set("If-Range", o.tag)
		} else if o.modified != "" { // a weak tag is not allowed here
			req.Header.Set("If-Range", o.modified)
		}
	}
	resp, err := o.client.Do(req)
	if err != nil {
		if e := (*url.Error)(nil); errors.As(err, &e) { // which quotes the address
			err = e.Err
		}
		if strings.Contains(err.Error(), "://") {
			return -1, errors.New("the server points to something that is not an address")
		}
		return 0, err
	}
	o.body = resp.Body
	return o.accept(resp)
}

// accept looks whether the answer is what was asked for.
func (o *webObject) accept(resp *http.Response) (after time.Duration, err error) {
	from, size := int64(0), resp.ContentLength
	switch code := resp.StatusCode; {
	case code == http.StatusOK: // all of it, also where only a part was asked for
	case code == http.StatusPartialContent && o.pos > 0:
		to, got := int64(0), resp.Header.Get("Content-Range")
		if n, _ := fmt.Sscanf(got, "bytes %d-%d/%d", &from, &to, &size); n < 3 {
			size = -1
		}
		if from != o.pos {
			return -1, fmt.Errorf("the server answers with the range %q", got)
		}
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500:
		wait := resp.Header.Get("Retry-After")
		seconds, _ := strconv.Atoi(wait)
		if date, err := http.ParseTime(wait); err == nil {
			seconds = int(time.Until(date).Seconds()) + 1
		}
		return time.Duration(max(0, min(seconds, 3600))) * time.Second, errors.New(resp.Status)
	default:
		return -1, errors.New(resp.Status)
	}
	tag, modified := resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	differ := func(a, b string) bool { return a != b && a != "" && b != "" }
	if differ(o.tag, tag) || differ(o.modified, modified) || o.size >= 0 && size >= 0 && o.size != size {
		return -1, errors.New("the object has changed while it was read")
	}
	o.tag, o.modified, o.size = cmp.Or(o.tag, tag), cmp.Or(o.modified, modified), max(o.size, size)
	o.behind = o.pos - from
	return 0, nil
}

// A TarDataset is the same records as those of Tar, as a Dataset: each is read by its index, with one read of the
// file, from several goroutines at once if need be. Packed shards cannot be read like that; hard links can. The files of a
// record share one piece of memory. It keeps each shard open until Close.
//
// PyTorch: wids, the indexed form of webdataset.
type TarDataset struct {
	records Dataset[Record]
	shards  []*tarIndex
}

// A tarIndex says where the records of a shard are, and is the Dataset of them.
type tarIndex struct {
	name    string
	file    *os.File
	members []tarMember
	ends    []int         // record r has the members ends[r-1] to ends[r]-1
	faults  map[int]error // of records that cannot be read
}

// A tarMember is a file of a record.
type tarMember struct {
	name             string
	stored           string // the name in the headers at head, that of a hard link's target
	head, data, size int64  // as in tarEntry
	sparse           bool
	key              int32 // the length of the key in name
}

// OpenTar opens tar shards, which are files, as one data set. The headers of each are read once, unless there is an index beside
// it: for x.tar the file x.idx, in the format of DALI's wds2idx, version 1.2, as WriteIndex writes it; then only what it
// does not tell is read. A shard that is damaged, cut or packed is an error, and so is an index that lacks records or is
// of another shard. Which records there are does not change afterwards; one of which a file cannot be given is an
// error each time it is asked for.
func OpenTar(paths ...string) (*TarDataset, error) {
	if len(paths) == 0 {
		return nil, errors.New("dataloader: OpenTar: there are no shards")
	}
	d := new(TarDataset)
	var parts []Dataset[Record]
	for _, name := range paths {
		x := &tarIndex{name: name, faults: map[int]error{}}
		d.shards, parts = append(d.shards, x), append(parts, x)
		if err := x.open(); err != nil {
			d.Close()
			return nil, err
		}
	}
	d.records = Concat(parts...)
	return d, nil
}

// open opens the shard, and reads its index or makes one.
func (x *tarIndex) open() (err error) {
	s := &tarShard{ctx: context.Background(), name: x.name, max: defaultMaxFile, fields: map[string]bool{}}
	if strings.Contains(x.name, "://") {
		return s.fault(errors.New("OpenTar reads files; use Tar"))
	}
	if x.file, err = os.Open(x.name); err != nil {
		return s.fault(err)
	}
	s.file, s.in = x.file, bufio.NewReaderSize(x.file, tarBuffer)
	if err = s.unpack(); err == nil && s.packed {
		err = errors.New("it is packed, and cannot be read at an offset: unpack it, or use Tar")
	}
	if err != nil {
		return s.fault(err)
	}
	index, err := os.ReadFile(x.indexName())
	if err == nil {
		err = x.parse(string(index))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("dataloader: index %s: %w; without it the shard itself is read", x.indexName(), err)
	}
	if err = x.locate(s); err != nil {
		return err
	}
	known := len(x.ends)
	if known == 0 {
		s.files = map[string]tarEntry{}
	}
	if err = x.scan(s); err == nil && known > 0 && len(x.ends) > known { // what comes after the last record of the index
		err = s.fault(x.stale())
	}
	return err
}

// locate looks at what lies between the members that the index has: headers of theirs beside the one right before
// the data, and what has no part in a record. It leaves s behind the last one.
func (x *tarIndex) locate(s *tarShard) error {
	end := int64(0) // of the members so far
	for i := range x.members {
		m := &x.members[i]
		if m.head > end {
			if err := s.discard(end - s.pos); err != nil {
				return s.fault(x.stale())
			}
			for s.at.data < m.data {
				if err := s.advance(); err != nil {
					return s.fault(fmt.Errorf("%w (%w)", x.stale(), err))
				}
				if _, _, ok := splitName(s.at.name); s.at.data > m.data || s.at.data < m.data && ok && s.at.kind != 0 {
					return s.fault(x.stale())
				}
			}
			m.head, s.left, s.at.sparse = s.at.head, 0, nil
		}
		end = m.data + m.size
		end += -end & (tarBlock - 1)
	}
	if err := s.discard(end - s.pos); err != nil {
		return s.fault(x.stale())
	}
	return nil
}

// indexName is the name of the shard's index.
func (x *tarIndex) indexName() string { return strings.TrimSuffix(x.name, ".tar") + ".idx" }

// stale is the error of an index that is not of this shard.
func (x *tarIndex) stale() error {
	return fmt.Errorf("the shard is not the one that was indexed: remove %s if it is there, and open the shard again", x.indexName())
}

// scan adds the records that come in s.
func (x *tarIndex) scan(s *tarShard) error {
	s.take = func(rec *Record, field string) error {
		name, at := s.at.name, s.at
		if at.kind == tar.TypeLink {
			target, ok := s.files[at.link]
			if !ok {
				return s.fault(fmt.Errorf("it is a hard link to %q, which does not come before it", at.link))
			}
			at, s.files[name] = target, target
		}
		rec.Files = append(rec.Files, File{Name: field})
		x.members = append(x.members, tarMember{name, at.name, at.head, at.data, at.size, at.sparse != nil, int32(len(rec.Key))})
		return nil
	}
	for {
		_, err := s.next()
		switch {
		case err == io.EOF:
			return nil
		case s.failed:
			return err
		case err != nil:
			x.faults[len(x.ends)] = err
		}
		x.ends = append(x.ends, len(x.members))
	}
}

// parse reads an index: "v1.2" and the number of records, then a line for each, with four words for each file: its
// extension, its offset and size in the shard, and its name.
func (x *tarIndex) parse(index string) error {
	head, rest, _ := strings.Cut(index, "\n")
	count, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "v1.2 ")))
	if err != nil || !strings.HasPrefix(head, "v1.2 ") {
		return fmt.Errorf("it begins with %.40q, must begin with \"v1.2\" and the number of records", head)
	}
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	number, record, end := 1, "", int64(0) // of the file before
	fields := map[string]bool{}
	for line := range strings.Lines(rest) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || len(words)%4 != 0 {
			return fmt.Errorf("line %d has %d words, must have 4 for each file", number, len(words))
		}
		for ; len(words) > 0; words = words[4:] {
			name := words[3]
			key, field, ok := splitName(name)
			if !ok {
				continue
			}
			data, err1 := strconv.ParseInt(words[1], 10, 64)
			size, err2 := strconv.ParseInt(words[2], 10, 64)
			if err1 != nil || err2 != nil || data < end+tarBlock || data%tarBlock != 0 || size < 0 || size > info.Size()-data {
				return fmt.Errorf("line %d: %q has the offset %s and the size %s, which cannot be in a shard of %d bytes, after byte %d",
					number, name, words[1], words[2], info.Size(), end)
			}
			if len(x.members) == 0 || key != record {
				x.ends, record = append(x.ends, 0), key
				clear(fields)
			}
			if fields[field] {
				return fmt.Errorf("line %d: record %q has another field %q", number, key, field)
			}
			fields[field] = true
			x.members = append(x.members, tarMember{name, name, data - tarBlock, data, size, false, int32(len(key))})
			x.ends[len(x.ends)-1], end = len(x.members), data+size
		}
		count--
	}
	if count != 0 {
		return fmt.Errorf("it has %d lines of records, its first line says %d", number-1, number-1+count)
	}
	return nil
}

// Len returns the number of records.
func (d *TarDataset) Len() int { return d.records.Len() }

// Get reads record i. If the shard has changed so that the index no longer fits it, that is an error.
func (d *TarDataset) Get(ctx context.Context, i int) (Record, error) { return d.records.Get(ctx, i) }

// Len returns the number of records in the shard.
func (x *tarIndex) Len() int { return len(x.ends) }

// Get reads record i of the shard.
func (x *tarIndex) Get(_ context.Context, i int) (Record, error) {
	if err := x.faults[i]; err != nil {
		return Record{}, err
	}
	first := 0
	if i > 0 {
		first = x.ends[i-1]
	}
	members := x.members[first:x.ends[i]]
	rec := Record{Shard: x.name, Files: make([]File, len(members))}
	for j := range members {
		m := &members[j]
		rec.Key, rec.Files[j].Name = m.name[:m.key], strings.ToLower(m.name[m.key+1:])
	}
	if err := x.read(rec.Files, members); err != nil {
		return Record{}, err
	}
	return rec, nil
}

// read reads members into files, with their headers, at once if nothing large lies between them.
func (x *tarIndex) read(files []File, members []tarMember) error {
	from, to, wanted := members[0].data-tarBlock, int64(0), int64(0)
	apart := false
	for _, m := range members {
		apart = apart || m.sparse || m.data < to
		to = m.data + m.size
		wanted += m.size
	}
	if (apart || to-from > 2*wanted+tarBuffer) && len(members) > 1 {
		for j := range members {
			if err := x.read(files[j:j+1], members[j:j+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if apart {
		return x.readAnew(&files[0], members[0])
	}
	data := make([]byte, to-from)
	if _, err := x.file.ReadAt(data, from); err == io.EOF {
		return x.fault(members[0], x.stale())
	} else if err != nil {
		return x.fault(members[0], err)
	}
	for j := range members {
		m := &members[j]
		begin, end := m.data-from, m.data-from+m.size
		if name, size, ok := basics(data[begin-tarBlock : begin]); ok && size == m.size && string(name) == m.stored {
			files[j].Data = data[begin:end:end]
		} else if err := x.readAnew(&files[j], *m); err != nil {
			return err
		}
	}
	return nil
}

// readAnew reads a file whose own header does not say all, because its name is long, or it has holes; or which is not there.
func (x *tarIndex) readAnew(file *File, m tarMember) error {
	s := &tarShard{ctx: context.Background(), name: x.name, pos: m.head, max: max(m.size, defaultMaxFile)}
	s.in = bufio.NewReader(io.NewSectionReader(x.file, m.head, math.MaxInt64-m.head))
	if err := s.advance(); err != nil || s.at.name != m.stored || s.at.size != m.size || s.at.data != m.data {
		return x.fault(m, x.stale())
	}
	var err error
	file.Data, err = s.read()
	return err
}

// fault is an error at a member of the shard.
func (x *tarIndex) fault(m tarMember, err error) error {
	return &TarError{x.name, m.name, m.head, err}
}

// WriteIndex writes an index beside each shard, x.idx beside x.tar, in the format of DALI's wds2idx, version 1.2, for
// OpenTar and for DALI. The format has no way to write names with white space or files without a field, and
// none for sparse files, hard links and shards without records; these are errors.
func (d *TarDataset) WriteIndex() error {
	for _, x := range d.shards {
		index, err := x.format()
		if err == nil {
			err = writeFile(x.indexName(), index)
		}
		if err != nil {
			return fmt.Errorf("dataloader: index %s: %w", x.indexName(), err)
		}
	}
	return nil
}

// format writes the index of the shard.
func (x *tarIndex) format() ([]byte, error) {
	if len(x.ends) == 0 {
		return nil, errors.New("the shard has no records")
	}
	for _, err := range x.faults {
		return nil, err
	}
	index := fmt.Appendf(nil, "v1.2 %d\n", len(x.ends))
	first := 0
	for _, end := range x.ends {
		for j, m := range x.members[first:end] {
			key, field, _ := splitName(m.name)
			if m.sparse || m.name != m.stored || field == "" || strings.ContainsFunc(m.name, unicode.IsSpace) {
				return nil, fmt.Errorf("entry %q cannot be written: it is sparse, a hard link, without a field, or has white space in its name", m.name)
			}
			if j > 0 {
				index = append(index, ' ')
			}
			index = fmt.Appendf(index, "%s %d %d %s", m.name[len(key)+1:], m.data, m.size, m.name)
		}
		index, first = append(index, '\n'), end
	}
	return index, nil
}

// writeFile writes a file that is there as a whole or not at all.
func writeFile(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // unless it has another name by then
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// Close closes the shards. Get is an error afterwards.
func (d *TarDataset) Close() error {
	var errs []error
	for _, x := range d.shards {
		if x.file != nil {
			errs = append(errs, x.file.Close())
		}
	}
	return errors.Join(errs...)
}

// A TarWriter writes records to a tar shard. The same records make the same bytes: the fields are sorted, and the
// headers have no time and no owner. It is not safe for concurrent use.
//
// PyTorch: webdataset.TarWriter, without its encoders.
type TarWriter struct {
	tar  *tar.Writer
	keys map[string]bool
}

// NewTarWriter returns a TarWriter that writes to w: a file, or a gzip.Writer around one.
func NewTarWriter(w io.Writer) *TarWriter {
	return &TarWriter{tar.NewWriter(w), map[string]bool{}}
}

// Write writes a record, whose Shard does not matter. It writes nothing and returns an error if the record would not be the
// same when it is read: it must have files, a key of its own that is a relative path without a dot in its last element, and
// each field must be in lower case, not empty, without a slash, and there once.
func (w *TarWriter) Write(r Record) error {
	files := slices.SortedFunc(slices.Values(r.Files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	if len(files) == 0 {
		return fmt.Errorf("dataloader: TarWriter: record %q has no files", r.Key)
	}
	if w.keys[r.Key] {
		return fmt.Errorf("dataloader: TarWriter: the shard has a record %q already", r.Key)
	}
	if strings.HasPrefix(r.Key, "/") || slices.Contains(strings.Split(r.Key, "/"), "..") || strings.Contains(r.Key, "\x00") {
		return fmt.Errorf("dataloader: TarWriter: key %q must be a relative path, without \"..\"", r.Key)
	}
	for i, f := range files {
		name := r.Key + "." + f.Name
		key, field, ok := splitName(name)
		switch {
		case f.Name == "" || strings.Contains(f.Name, "\x00"):
			return fmt.Errorf("dataloader: TarWriter: record %q: field %q must not be empty or have a NUL", r.Key, f.Name)
		case !ok:
			return fmt.Errorf("dataloader: TarWriter: file %q of record %q would be left out when it is read, as are hidden files, files without a dot, and names like __meta__", name, r.Key)
		case key != r.Key || field != f.Name:
			return fmt.Errorf("dataloader: TarWriter: file %q of record %q would be read as field %q of record %q", name, r.Key, field, key)
		}
		if i > 0 && f.Name == files[i-1].Name {
			return fmt.Errorf("dataloader: TarWriter: record %q has field %q twice", r.Key, f.Name)
		}
	}
	for _, f := range files {
		err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: r.Key + "." + f.Name, Size: int64(len(f.Data)), Mode: 0o444})
		if err == nil {
			_, err = w.tar.Write(f.Data)
		}
		if err != nil {
			return fmt.Errorf("dataloader: TarWriter: record %q: %w", r.Key, err)
		}
	}
	w.keys[r.Key] = true
	return nil
}

// Close writes the end marker, without which a shard counts as cut. It does not close the writer underneath.
func (w *TarWriter) Close() error {
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("dataloader: TarWriter: %w", err)
	}
	return nil
}

// maxExpand is the largest number of names that a pattern may stand for.
const maxExpand = 1 << 20

// Expand lists the names that a pattern with braces stands for, as bash does: "{a,b}" for a and b, "{8..11}" and "{08..11}"
// for numbers without and with zeros in front, "{c..a}" for letters, "{0..20..5}" for every fifth; of several
// braces the last changes fastest, and one in another is done first. Braces with neither a comma nor two dots
// stay as they are, and so does what comes after a backslash. A brace without its other half is an error.
func Expand(pattern string) ([]string, error) {
	names, err := expand(pattern)
	if err != nil {
		return nil, fmt.Errorf("dataloader: Expand(%q): %w", pattern, err)
	}
	return names, nil
}

// expand expands the first braces of a pattern, then what is in them and what comes after them.
func expand(pattern string) ([]string, error) {
	cuts, err := braces(pattern)
	if err != nil {
		return nil, err
	}
	if len(cuts) == 0 {
		return []string{escape.ReplaceAllString(pattern, "$1")}, nil
	}
	before, after := pattern[:cuts[0]], pattern[cuts[len(cuts)-1]+1:]
	var choices []string
	for i, cut := range cuts[1:] {
		list, part := expand, pattern[cuts[i]+1:cut]
		if len(cuts) == 2 {
			list = sequence
		}
		names, err := list(part)
		if err == nil && names == nil { // no braces that mean something
			return expand(before + `\{` + part + `\}` + after)
		}
		if choices = append(choices, names...); err == nil && len(choices) > maxExpand {
			err = errTooMany
		}
		if err != nil {
			return nil, err
		}
	}
	rests, err := expand(after)
	if err == nil && len(choices) > maxExpand/len(rests) {
		err = errTooMany
	}
	if err != nil {
		return nil, err
	}
	before = escape.ReplaceAllString(before, "$1")
	var names []string
	for _, choice := range choices {
		for _, rest := range rests {
			names = append(names, before+choice+rest)
		}
	}
	return names, nil
}

// braces finds where the first braces of a pattern begin, have commas, and end.
func braces(pattern string) (cuts []int, err error) {
	depth := 0
	for i := 0; i < len(pattern) && (depth > 0 || len(cuts) == 0); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '{':
			if depth++; depth == 1 {
				cuts = append(cuts, i)
			}
		case c == ',' && depth == 1:
			cuts = append(cuts, i)
		case c == '}':
			if depth--; depth < 0 {
				return nil, errors.New("a } has no {")
			}
			if depth == 0 {
				cuts = append(cuts, i)
			}
		}
	}
	if depth > 0 {
		return nil, errors.New("a { has no }")
	}
	return cuts, nil
}

var (
	errTooMany = fmt.Errorf("it stands for more than %d names", maxExpand)
	escape     = regexp.MustCompile(`(?s)\\(.)`)
)

// sequence lists the elements of a sequence such as "08..11" or "a..z..2", or nothing if that is none.
func sequence(s string) ([]string, error) {
	parts := strings.Split(s, "..")
	if len(parts) != 2 && len(parts) != 3 {
		return nil, nil
	}
	from, err1 := strconv.ParseInt(parts[0], 10, 64)
	to, err2 := strconv.ParseInt(parts[1], 10, 64)
	format, width := "%0*d", 0
	isLetter := func(s string) bool { return len(s) == 1 && s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z' }
	switch {
	case err1 == nil && err2 == nil:
		for _, p := range parts[:2] {
			if digits := strings.TrimPrefix(p, "-"); len(digits) > 1 && digits[0] == '0' {
				width = max(len(parts[0]), len(parts[1]))
			}
		}
	case isLetter(parts[0]) && isLetter(parts[1]):
		format, from, to = "%*c", int64(parts[0][0]), int64(parts[1][0])
	default:
		return nil, nil
	}
	step := uint64(1)
	if len(parts) == 3 {
		n, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return nil, nil
		}
		step = max(1, uint64(max(n, -n)))
	}
	count := uint64(max(from, to)-min(from, to)) / step // and one more
	if count >= maxExpand {
		return nil, errTooMany
	}
	var all []string
	for i := range count + 1 {
		n := from + int64(i*step)
		if to < from {
			n = from - int64(i*step)
		}
		all = append(all, fmt.Sprintf(format, width, n))
	}
	return all, nil
}

// Decode makes of a file what its extension says, as well as the standard library can: an image.Image of png, jpg, jpeg
// and gif; of json what encoding/json makes; a string of txt, text and transcript; an int of cls, cls2, class, count,
// index and id. Anything else it returns as it is, as []byte. The name may be a path, or the field of a Record. Nothing
// in the data is ever executed.
//
// PyTorch: the decode step of webdataset, and the decoding of the DataLoader's RFC.
func Decode(name string, data []byte) (any, error) {
	var value any
	var err error
	switch strings.ToLower(name[strings.LastIndexByte(name, '.')+1:]) {
	case "png", "jpg", "jpeg", "gif":
		value, _, err = image.Decode(bytes.NewReader(data))
	case "json":
		err = json.Unmarshal(data, &value)
	case "txt", "text", "transcript":
		value = string(data)
	case "cls", "cls2", "class", "count", "index", "id":
		value, err = strconv.Atoi(strings.TrimSpace(string(data)))
	default:
		value = data
	}
	if err != nil {
		return nil, fmt.Errorf("dataloader: Decode(%q): %w", name, err)
	}
	return value, nil
}
