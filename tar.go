package dataloader

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"image"
	"image/color"
	_ "image/gif"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// This file has three parts, which can be read alone: shards, where shards come
// from, and what files become.
//
// Shards are read in three layers:
//
//	readShard     what a fault costs: one record, or the rest of the shard
//	recordReader  records: consecutive files with the same key
//	tarReader     entries: headers, and the data, which is read or skipped
//
// The stream of Tar uses all three, the Dataset of OpenTar the lower two.
// TarWriter writes shards.
//
// Expand lists the names of shards, and OpenShard opens one in a file or in the
// web. Decode decodes files by their extension, and ImageTensor makes a tensor
// from an image.

// A Record is one sample of a tar shard: the files that share a key and stand
// next to each other in the archive, as in WebDataset. The key is the name of a
// file up to the first dot after the last slash. The rest of the name, in lower
// case, is the field:
//
//	train/0001.jpg      key train/0001, field jpg
//	train/0001.seg.png  key train/0001, field seg.png
//
// Some entries belong to no record: folders, symbolic links, devices, files
// without a dot or with nothing before it (.hidden, ._x), and names whose first
// element is like __meta__. Such an entry is skipped and does not end the
// record around it.
type Record struct {
	Key   string
	Shard string // the name of the shard, as it was given to Tar or OpenTar
	Files []File // in the order of the archive; File.Name is the field
}

// Get returns the content of a field, or nil if the record has no such field.
// The content of an empty file is not nil.
func (r Record) Get(field string) []byte {
	for _, f := range r.Files {
		if f.Name == field {
			return f.Data
		}
	}
	return nil
}

// skippedFiles says which files belong to no record.
const skippedFiles = "hidden files, files without a dot, and names like __meta__"

// splitName splits the name of a file into key and field. ok is false for a
// name that belongs to no record.
//
// WebDataset splits with a regular expression, which makes the key "d/" of
// "d/.hidden" by backtracking. Hidden files are skipped here in every folder,
// as DALI does.
func splitName(name string) (key, field string, ok bool) {
	top, _, _ := strings.Cut(name, "/")
	meta := len(top) >= 4 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__")
	base := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[base:], '.')
	if dot <= 0 || meta {
		return "", "", false
	}
	return name[:base+dot], lowerField(name[base+dot+1:]), true
}

// lowerField returns a field in lower case. A field that is not UTF-8 stays as
// it is: strings.ToLower would replace all invalid bytes by one character, so
// that two fields might become equal.
func lowerField(field string) string {
	if utf8.ValidString(field) {
		field = strings.ToLower(field)
	}
	return field
}

// An Opener opens a shard for reading. offset is the first byte wanted; it is
// greater than 0 only when an uncompressed shard is resumed from a cursor. The
// reader is closed before the range over the stream ends. If the reader is an
// io.Seeker, large files that are not wanted are skipped with Seek. Ranges that
// run at the same time call an Opener concurrently.
//
// A reader that fails costs the rest of its shard, even if only a connection
// has broken. OpenShard asks a web server again from the next byte on; the
// recipe Example_reopenedStore does so with the client of another store.
//
// ExampleOpener reads from another store; among the recipes,
// Example_presignedURL reads from a private bucket of S3, and
// Example_shardsOnDisk keeps shards on disk.
type Opener func(ctx context.Context, name string, offset int64) (io.ReadCloser, error)

// TarOptions say how Tar reads. The zero value reads everything, in the order
// given.
type TarOptions struct {
	// Shuffle reads the shards in a new order each epoch, that of Random with
	// Seed, which must be the same on all ranks.
	Shuffle bool
	Seed    uint64

	// Rank says which part of the shards is read, after the shuffle. The zero
	// Rank reads all shards. The parts may have different numbers of records.
	// If all ranks must take the same number of steps, let an epoch be k
	// records of each rank: records.Cycle().Take(k).
	//
	// Each rank saves its own cursor and resumes from it. Another rank, which
	// does not know how far these shards are read, refuses it; but the cursor
	// of a Chain does not name a Tar that has ended, nor whose it was. The
	// recipe Example_elasticShards shows how the number of ranks may change.
	Rank Rank

	// Fields are the fields to read, in any case; files with other fields are
	// skipped. nil means all fields. A record with none of these fields is
	// yielded without files.
	Fields []string

	// Open opens a shard. nil means OpenShard.
	Open Opener

	// MaxRecord is the most memory, in bytes, that the files of one record may
	// take together; 0 means 1 GiB. Each file counts as its data, its name and
	// 160 bytes; a file that Fields leaves out counts without its data.
	// MaxRecord protects from sizes in damaged headers. It must not be
	// negative.
	MaxRecord int64
}

// defaultMaxRecord replaces a TarOptions.MaxRecord of 0. fileMemory is about
// what a file of a record takes besides its data and name, in Record.Files and
// recordReader.fields.
const (
	defaultMaxRecord = 1 << 30
	fileMemory       = 160
)

// A TarError says what is wrong with a shard, and where. Passwords and queries
// are removed from URLs in Shard and in the errors of OpenShard, because they
// may be secrets. A name with "://" that is no URL is shown up to its first
// colon.
type TarError struct {
	Shard string

	// Entry is the last entry whose headers were read. It is empty before the
	// first entry and after the end marker.
	Entry string

	// Offset is that of Entry's first header, or of the next header if Entry
	// was read. It counts bytes of the uncompressed archive, and is -1 if the
	// shard was not opened.
	Offset int64

	Err error // the cause

	// Rest says that Tar leaves out the rest of the shard, so that the error
	// stands for an unknown number of records. It is false if one record has a
	// fault of its own, and in the errors of OpenTar.
	Rest bool
}

// Error names the shard, the entry and the offset, or only a shard that was not
// opened.
func (e *TarError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("shard %s: %v", quote(e.Shard), e.Err)
	}
	return fmt.Sprintf("shard %s, entry %s, offset %d: %v",
		quote(e.Shard), quote(e.Entry), e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *TarError) Unwrap() error { return e.Err }

// quote quotes a text for an error. A text of more than 200 bytes loses its
// middle, because a file may have millions.
func quote[S ~string | ~[]byte](text S) string {
	if n := len(text); n > 200 {
		return fmt.Sprintf("%q … %q (%d bytes)", text[:100], text[n-100:], n)
	}
	return fmt.Sprintf("%q", text)
}

// begins describes data that are not what they should be.
func begins(data []byte) string {
	if len(data) == 0 {
		return "it is empty"
	}
	return fmt.Sprintf("its %d bytes begin with %s", len(data), quote(data[:min(len(data), 16)]))
}

// A tarState is the State of Tar's cursors: the place where the next record
// begins.
type tarState struct {
	// By describes the stream. Any other stream refuses the cursor.
	By string `json:"by"`

	// ShardNumber counts the shards of this rank. 0 is the first.
	ShardNumber int `json:"shard,omitempty"`

	// Offset is that of the record's first header in the uncompressed archive.
	Offset int64 `json:"offset,omitempty"`

	// Compressed says that the shard must be decompressed from its beginning,
	// which a reader that begins at Offset could not tell.
	Compressed bool `json:"compressed,omitempty"`

	// Keys are hashes of keys of the shard's records before Offset, see
	// checkKey. Cursors that were saved before there were hashes have none.
	Keys []byte `json:"tar key hashes,omitempty"`
}

// Tar returns the stream of the records in tar shards. A shard may be
// uncompressed or compressed with gzip or bzip2; its first bytes tell, not its
// name. The stream keeps one record in memory, and a buffer of 256 KiB, or two
// for a compressed shard.
//
// A cursor of the stream is a shard, a byte offset and hashes of keys. An
// uncompressed shard is resumed with a seek, or a request for a range. A
// compressed shard is decompressed again from its beginning, because neither
// format can be entered in the middle. A cursor fits the same shards in another
// place, because only the last elements of their names are compared, without
// queries.
//
// A damaged shard is never silent. A shard that is truncated, damaged or cannot
// be opened yields the records before the fault, then one error, and the next
// shard follows. A record with a fault of its own (a field that comes twice, a
// hard link, more bytes than MaxRecord) yields one error and no part of the
// record, and the next record follows. Both are failed items with a TarError,
// whose Rest tells them apart. So a loop that skips failed items reads every
// sound record, except those behind the fault of a damaged shard.
//
// The files of a record must be neighbors. In a shard that tar cf x.tar *.jpg
// *.txt has written they are not. A key that comes again after another ends its
// shard, as when tar r has appended a record again. But only hashes of 32 keys
// of a shard are kept, in the cursor, too, so that a resume finds the same. In
// a shard of n records, a key that comes again is noticed with a chance of 32 /
// n, and one of many almost surely, after some records. OpenTar compares all
// keys, before the first record, and TarWriter does not write such a shard.
//
// A sparse file, which tar --sparse stores without its holes, ends its shard,
// even if Fields leaves the file out. The record before the file is lost, too,
// because it may lack files.
//
// A shard that has files but no record is an error. So are too many zeros after
// the end marker, because the rest of such a shard was never written. Up to 64
// KiB of zeros are allowed. More are allowed only as the padding of a last
// block, as tar -b 256, 512, 1024 or 2048 writes it.
//
// To shuffle, set TarOptions.Shuffle and add Stream.Shuffle, of ten times as
// many records as a shard has, or more. To read k shards at once, which mixes
// better and opens them in one round trip, Mix the streams of Rank{0, k} to
// Rank{k-1, k}, and shuffle the mix. If each of several ranks has 32 such
// readers, reader k of a rank is Rank{32*rank + k, 32*ranks}. Readers of remote
// shards hold a connection each, all the time. If there are fewer shards than
// ranks, Tar returns an error: leave TarOptions.Rank out, and deal records with
// Stream.Shard.
//
// PyTorch: webdataset.WebDataset, and the TarDataset of the DataLoader's RFC.
func Tar(shards []string, opts TarOptions) (Stream[Record], error) {
	shards = slices.Clone(shards)
	rank, err := opts.prepare(shards)
	if err != nil {
		return Stream[Record]{}, fmt.Errorf("dataloader: Tar: %w", err)
	}
	order := Sequential(len(shards))
	if opts.Shuffle {
		order = Random(len(shards), opts.Seed)
	}
	allRanks := fmt.Sprintf("Tar(%d shards #%x, %s, rank ",
		len(shards), hashNames(shards), describe(order))
	by := fmt.Sprintf("%s%d of %d)", allRanks, rank.Index, rank.Count)
	return streamOf(ranks{[]dealt{{rank: rank}}, true}, func(
		ctx context.Context, from Cursor, yield func(Item[Record]) bool,
	) error {
		var state tarState
		err := from.fit(by, &state.By, &state)
		if state.By != by && strings.HasPrefix(state.By, allRanks) {
			err = from.refuse("it was made by %s, this is %s: "+
				"each rank needs the cursor that it saved itself, of as many ranks; "+
				"Example_elasticShards shows how their number may change", state.By, by)
		}
		if err != nil {
			return err
		}
		count := rank.dealt(len(shards))
		if state.ShardNumber < 0 || state.ShardNumber > count || state.Offset < 0 ||
			len(state.Keys)%keyHash != 0 || len(state.Keys) > maxKeys*keyHash {
			return from.refuse("its state is damaged: shard %d at offset %d, of %d shards",
				state.ShardNumber, state.Offset, count)
		}
		pos := from.Pos
		shardAt := order.Order(from.Epoch)
		for ; state.ShardNumber < count; state = (tarState{ShardNumber: state.ShardNumber + 1}) {
			name := shards[shardAt(rank.nth(state.ShardNumber))]
			for item, next := range readShard(ctx, name, &opts, state) {
				pos++
				next.By = by
				item.Next = Cursor{from.Epoch, pos, &next}
				if !yield(item) {
					return nil
				}
			}
		}
		return nil
	}), nil
}

// prepare checks options, and sets what is zero to what it stands for. It
// returns Rank with a count.
func (opts *TarOptions) prepare(shards []string) (Rank, error) {
	opts.Fields = slices.Clone(opts.Fields)
	for i, f := range opts.Fields {
		opts.Fields[i] = lowerField(f)
	}
	opts.MaxRecord = cmp.Or(opts.MaxRecord, defaultMaxRecord)
	readsURLs := opts.Open == nil // otherwise names are the Opener's
	if readsURLs {
		opts.Open = OpenShard
	}
	rank, err := opts.Rank.withCount()
	err = cmp.Or(err,
		errorIf(len(shards) == 0, "there are no shards"),
		errorIf(slices.Contains(shards, ""),
			"shard %d has an empty name", slices.Index(shards, "")),
		errorIf(len(shards) < rank.Count, "%d shards are too few for %d ranks: "+
			"leave TarOptions.Rank out and deal records with Stream.Shard", len(shards), rank.Count),
		errorIf(opts.MaxRecord < 0, "MaxRecord is %d, must not be negative", opts.MaxRecord))
	for i := 0; i < len(shards) && err == nil && readsURLs; i++ {
		if err = checkURL(shards[i]); err != nil {
			err = fmt.Errorf("shard %d, %s: %w", i, quote(redactURL(shards[i])), err)
		}
	}
	return rank, err
}

// hashNames hashes the last elements of the names of shards, so that a stream
// of other shards refuses the cursor. When a run is resumed, the same shards
// may be in another folder, or behind another signed URL.
func hashNames(names []string) uint64 {
	h := fnv.New64a()
	for _, name := range names {
		if i := strings.IndexAny(name, "?#"); i >= 0 && strings.Contains(name, "://") {
			name = name[:i]
		}
		fmt.Fprintf(h, "%s\x00", path.Base(name))
	}
	return h.Sum64()
}

// readShard yields the records of a shard that follow from, each with the state
// after it. It decides what a fault costs:
//
//   - the Err of an item costs one record, and the state after it is that of
//     the next record;
//   - an error of openShard, enterShard or readRecord costs the rest of the
//     shard, and the state after it is the next shard;
//   - io.EOF of readRecord is the end, which costs nothing.
//
// A panic of the Opener, or of its reader, is such an error.
func readShard(
	ctx context.Context, name string, opts *TarOptions, from tarState,
) iter.Seq2[Item[Record], tarState] {
	return func(yield func(Item[Record], tarState) bool) {
		r := newRecordReader(name, opts.MaxRecord)
		r.wanted = opts.Fields
		shard, err := openShard(ctx, name, opts.Open, from)
		if err == nil {
			defer shard.Close()
			err = try(func() error { return r.enterShard(ctx, shard, from) })
		}
		misread := errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF)
		if misread && from.Offset > 0 {
			err = fmt.Errorf("%w; or the cursor was saved with another version of this shard", err)
		}
		for err == nil {
			err = try(r.readRecord)
			if err != nil {
				break
			}
			next := tarState{
				ShardNumber: from.ShardNumber,
				Offset:      r.entry.begin,
				Compressed:  r.compressed,
				Keys:        r.keys,
			}
			if !yield(r.item, next) {
				return
			}
		}
		if err == io.EOF {
			return
		}
		err = fmt.Errorf("%w; the shard is not read further", err)
		failed := r.newError(err)
		failed.Rest = true
		yield(Item[Record]{Err: failed}, tarState{ShardNumber: from.ShardNumber + 1})
	}
}

// openShard opens the shard in which from is. A compressed shard is opened at
// its beginning, because offsets count uncompressed bytes.
func openShard(
	ctx context.Context, name string, open Opener, from tarState,
) (shard io.ReadCloser, err error) {
	defer rescue(&err)
	offset := from.Offset
	if from.Compressed {
		offset = 0
	}
	shard, err = open(ctx, name, offset)
	if err == nil && shard == nil {
		err = errors.New("the Opener returned neither a reader nor an error")
	}
	return shard, explainEOF(err)
}

// A recordReader groups the files of a shard into records.
//
// Nothing in an archive says how many files a record has. A record has ended
// when the headers of another record's file, or the end marker, have been read.
// So the reader is always one file ahead of the records that it has returned.
// That file is called the next file: its headers have been read, its data has
// not. A resume begins at its headers:
//
//	                           begin    offset
//	│ header │ data ···· 000 │ │ header │ data ·· 000 │ 000000 │ 000000 │
//	│ a.txt  │               │ │ b.txt  │             │   end marker    │
//	                           ↑
//	                           record a has been returned; the next file is b.txt
type recordReader struct {
	tarReader
	name string // of the shard

	// nextKey and nextField are those of the next file; nextWanted says whether
	// the field is wanted. After the last file nextKey is empty, and endErr is
	// io.EOF or what is wrong with the rest of the shard.
	nextKey, nextField string
	nextWanted         bool
	endErr             error

	keys        []byte // tarState.Keys; the slice is not changed
	keysUnknown bool   // whether those of the records before are not known

	wanted    []string // TarOptions.Fields
	maxRecord int64    // TarOptions.MaxRecord

	// These belong to the record that is being read, or was read last: the
	// record or its fault, its fields, the bytes of memory that it takes, and a
	// sum of the names and sizes of its files.
	item   Item[Record]
	fields map[string]bool
	memory int64
	sum    uint64
}

// newRecordReader returns a recordReader that has not entered its shard.
func newRecordReader(name string, maxRecord int64) *recordReader {
	return &recordReader{
		tarReader: tarReader{entry: tarEntry{begin: -1}},
		name:      name,
		maxRecord: maxRecord,
		fields:    map[string]bool{},
	}
}

// enterShard reads up to the first file that follows from, in a shard that
// openShard has opened there. Neither returns io.EOF, which would mean the end.
func (r *recordReader) enterShard(ctx context.Context, shard io.Reader, from tarState) error {
	r.keys = from.Keys
	r.keysUnknown = from.Offset > 0 && from.Keys == nil
	if !from.Compressed {
		r.offset = from.Offset
	}
	err := r.openArchive(ctx, shard, from.Offset)
	if err == nil {
		err = r.findNextFile()
	}
	return explainEOF(err)
}

// findNextFile reads the headers of the next file that belongs to a record.
// After the last file it reads the rest of the shard and sets endErr. The last
// record waits for that, so that nothing can fail once it has been handed over.
// Too many zeros are an error of the last record, too, because they may have
// been one of its files.
//
// If the whole shard has files but no record, findNextFile returns an error
// that names the first file. Otherwise a shard of files without extensions
// would look empty.
func (r *recordReader) findNextFile() error {
	noRecord := r.nextKey == "" // so far
	skipped := ""
	err := r.readHeaders()
	for ; err == nil; err = r.readHeaders() {
		if r.entry.kind == 0 {
			continue
		}
		key, field, ok := splitName(r.entry.name)
		if ok {
			r.nextKey = key
			r.nextField = field
			r.nextWanted = r.wanted == nil || slices.Contains(r.wanted, field)
			return nil
		}
		skipped = cmp.Or(skipped, r.entry.name)
	}
	if err != io.EOF {
		return err
	}
	r.nextKey = ""
	r.endErr = r.drainShard()
	switch {
	case r.endErr == errZeros:
		return errZeros
	case r.endErr == io.EOF && noRecord && skipped != "":
		return fmt.Errorf("it has files, but no record: %s is the first that is skipped, as are %s",
			quote(skipped), skippedFiles)
	}
	return nil
}

// readRecord makes the next record the item, and reads up to the headers behind
// it. It returns io.EOF after the last record of a sound shard. Any other error
// costs the shard.
//
// A record with a fault of its own is read to its end, to find where the next
// begins. If the shard fails within a record, the record is left out, because
// its last files may be missing: webdataset yields such a record, and may even
// join it to the first record of the next shard. If record and shard both have
// a fault, the error names both.
func (r *recordReader) readRecord() error {
	if r.nextKey == "" {
		return r.endErr
	}
	key := r.nextKey
	if err := r.checkKey(); err != nil {
		return err
	}
	files := make([]File, 0, len(r.item.Value.Files)) // as many as the last record has
	r.item = Item[Record]{Value: Record{Key: key, Shard: r.name, Files: files}}
	clear(r.fields)
	r.memory = 0
	r.sum = 0
	var err error
	for err == nil && r.nextKey == key {
		if r.item.Err == nil {
			r.checkFile()
		}
		if err = r.loadFile(); err == nil {
			err = r.findNextFile()
		}
	}
	if err != nil && r.item.Err != nil {
		err = fmt.Errorf("%w; before that: %w", err, r.item.Err)
	}
	if err != nil {
		err = fmt.Errorf("%w; record %s is left out, because it may lack files", err, quote(key))
	}
	return err
}

// checkKey returns an error if the next record has the key of an earlier one,
// as far as the kept hashes tell: the smallest ones, in ascending order. Which
// they are depends on the keys alone, so a resume finds what an epoch without
// it finds.
func (r *recordReader) checkKey() error {
	if r.keysUnknown {
		return nil
	}
	sum := sha256.Sum256([]byte(r.nextKey))
	hash, kept := sum[:keyHash], len(r.keys)/keyHash
	i, again := sort.Find(kept, func(i int) int {
		return bytes.Compare(hash, r.keys[i*keyHash:(i+1)*keyHash])
	})
	switch {
	case again:
		return keyComesAgain(r.nextKey)
	case i < maxKeys:
		kept = min(kept, maxKeys-1)
		r.keys = slices.Concat(r.keys[:i*keyHash], hash, r.keys[i*keyHash:kept*keyHash])
	}
	return nil
}

// maxKeys is the number of keys whose hashes are kept, and keyHash the number
// of bytes of a hash.
const (
	maxKeys = 32
	keyHash = 8
)

// keyComesAgain is the error of a shard whose records lie in pieces.
func keyComesAgain(key string) error {
	return fmt.Errorf("record %s comes again: the files of a record must be neighbors, "+
		"as TarWriter and tar --sort=name write them", quote(key))
}

// checkFile counts the memory of the next file. If the file has a fault, the
// record becomes an error. checkFile is called before any memory is allocated,
// because a damaged header may say 2^63-1 bytes.
func (r *recordReader) checkFile() {
	var size int64
	if r.nextWanted {
		size = r.entry.size
	}
	r.memory += int64(len(r.entry.name)) + fileMemory
	var err error
	switch {
	case r.fields[r.nextField]:
		err = fmt.Errorf("record %s has another field %s", quote(r.nextKey), quote(r.nextField))
	case size > r.maxRecord-r.memory:
		err = fmt.Errorf("its name and its %d bytes make the record larger than MaxRecord, %d",
			size, r.maxRecord)
	case r.nextWanted && r.entry.kind == tar.TypeLink:
		err = fmt.Errorf("it is a hard link to %s: use tar with --hard-dereference",
			quote(r.entry.target))
	default:
		r.fields[r.nextField] = true
		r.memory += size
		return
	}
	r.item = Item[Record]{Err: r.newError(err)}
}

// newError returns err as a TarError at the entry. If the shard could not be
// opened, its name may be a pattern, which Tar and OpenTar do not expand.
func (r *recordReader) newError(err error) *TarError {
	shard := redactURL(r.name)
	if r.entry.begin < 0 && strings.ContainsAny(shard, "{*?[") {
		err = fmt.Errorf("%w; if the name is a pattern, "+
			"Expand lists its names, or filepath.Glob, if it has no braces", err)
	}
	return &TarError{Shard: shard, Entry: r.entry.name, Offset: r.entry.begin, Err: err}
}

// loadFile loads the next file if its field is wanted and its record has no
// fault. An error of loadFile costs the shard.
func (r *recordReader) loadFile() error {
	name := maphash.String(sumSeed, r.entry.name)
	r.sum = hash(r.sum, name, uint64(r.entry.size))
	if r.item.Err != nil || !r.nextWanted {
		return nil
	}
	data, err := r.readData()
	r.item.Value.Files = append(r.item.Value.Files, File{r.nextField, data})
	return err
}

// sumSeed is the seed of the names in sums, which are compared within one
// process only.
var sumSeed = maphash.MakeSeed()

// A tarReader reads the entries of one archive, from front to back.
//
// An archive is a sequence of blocks of 512 bytes: for each entry its headers,
// then its data, filled up with zeros to a whole block. Two blocks of zeros,
// the end marker, follow the last entry. Most entries have one header. A name
// too long for it stands in front, as the data of another header:
//
//	begin                                           offset         dataEnd
//	│ header of the name │ name ······ 000 │ header │ data ······· 000 │
type tarReader struct {
	source     contextReader // the shard or, if it is compressed, its decompressor
	archive    *bufio.Reader // reads source
	compressed bool

	// wholeSize is the size of all that will be read, if the buffer of archive
	// holds it at once, so that files may share its memory; otherwise 0.
	wholeSize int

	// offset is that of the next byte in the archive. entry is the entry whose
	// headers were read last, and dataEnd the offset at which its data ends.
	offset  int64
	entry   tarEntry
	dataEnd int64
}

// A tarEntry is what the headers of an archive say about one entry. The end
// marker is an entry without a name.
type tarEntry struct {
	name   string
	target string // of a hard link
	kind   byte   // tar.TypeReg, tar.TypeLink, or 0 for an entry that belongs to no record
	size   int64  // of the file, in bytes
	begin  int64  // the offset of the first header
}

// tarBlock is the size of a block. tarBuffer is the size of the buffer for
// headers and small files. A larger buffer is a little faster, but a program
// that reads k shards at once needs k of them.
const (
	tarBlock  = 512
	tarBuffer = 256 << 10
)

// errTruncated is the error of an archive that ends before its end marker.
// archive/tar and the peers take an archive that is truncated between two
// entries for complete. But a copy that failed may end anywhere.
var errTruncated = fmt.Errorf("the archive ends before its end marker, "+
	"as if it had been truncated (was the TarWriter closed?): %w", io.ErrUnexpectedEOF)

// errZeros is the error of a shard whose end was never written, although the
// file system or the download had made room for it.
var errZeros = errors.New("more than 64 KiB of zeros come after the end marker, " +
	"and no blocking factor of tar explains them: " +
	"it was not written to its end, so write or copy it again")

// openArchive starts to read a shard, which stands at r.offset, and skips to
// offset to.
func (r *tarReader) openArchive(ctx context.Context, shard io.Reader, to int64) error {
	r.source = contextReader{shard, ctx}
	r.entry.begin = r.offset
	r.archive = bufio.NewReaderSize(r.source, cmp.Or(r.wholeSize, tarBuffer))
	if err := r.decompress(); err != nil {
		return err
	}
	return r.skipTo(to)
}

// A contextReader reads until the context ends. It gives up on readers that
// return neither bytes nor an error: bufio.Reader does so, too, but passes
// large reads on.
type contextReader struct {
	io.Reader
	ctx context.Context
}

// Read reads from the reader. The cause of the context is wrapped, because it
// might be io.EOF.
func (c contextReader) Read(p []byte) (n int, err error) {
	for range 100 {
		if c.ctx.Err() != nil {
			return 0, fmt.Errorf("the context has ended: %w", context.Cause(c.ctx))
		}
		n, err = c.Reader.Read(p)
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// decompress puts a decompressor in front of a compressed shard. Only the first
// bytes of a shard tell, so at a later offset it is taken for uncompressed. xz
// and zstd, which the standard library cannot read, are only named in the
// error.
//
// The decompressor is read by a contextReader, too, because a few bytes may
// become gigabytes.
func (r *tarReader) decompress() error {
	magic, err := r.archive.Peek(10)
	if r.offset > 0 || err != nil && err != io.EOF {
		return err
	}
	begins := func(with string) bool { return strings.HasPrefix(string(magic), with) }
	var decompressor io.Reader
	switch {
	case begins("\x1f\x8b"):
		decompressor, err = newGunzipper(r.archive)
	case begins("BZh") && len(magic) == 10 && string(magic[4:]) == "1AY&SY":
		decompressor = bzip2.NewReader(r.archive)
	case begins("\xfd7zXZ\x00"), begins("\x28\xb5\x2f\xfd"):
		return errors.New("it is compressed with xz or zstd, which cannot be read: " +
			"use gzip, bzip2 or an uncompressed tar")
	default:
		return nil
	}
	r.compressed = true
	r.source.Reader = decompressor
	r.archive = bufio.NewReaderSize(r.source, tarBuffer)
	return err
}

// A gunzipper reads a gzip file. It may have several members, as pigz and cat
// write them, and zeros behind the last one, with which tapes and devices fill
// up their blocks. gzip.Reader refuses such zeros; gunzip does not.
type gunzipper struct {
	*gzip.Reader
	file *bufio.Reader
}

// newGunzipper reads the header of the first member.
func newGunzipper(file *bufio.Reader) (*gunzipper, error) {
	r, err := gzip.NewReader(file)
	if err != nil {
		return nil, replaceEOF(err)
	}
	r.Multistream(false)
	return &gunzipper{r, file}, nil
}

// Read reads what is compressed.
func (g *gunzipper) Read(p []byte) (int, error) {
	for {
		n, err := g.Reader.Read(p)
		if err != io.EOF {
			return n, err
		}
		b, err := g.file.Peek(1) // behind a member
		switch {
		case err != nil:
		case b[0] == 0:
			err = g.skipZeros()
		case b[0] != 0x1f: // the first byte of a member
			err = gzip.ErrHeader
		default:
			err = replaceEOF(g.Reset(g.file))
			g.Multistream(false)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// skipZeros returns io.EOF if only zeros follow.
func (g *gunzipper) skipZeros() error {
	for {
		b, err := g.file.Peek(max(1, g.file.Buffered()))
		switch {
		case !isZero(b):
			return gzip.ErrHeader
		case err != nil:
			return err
		}
		g.file.Discard(len(b))
	}
}

// readHeaders reads the headers of the next entry, and leaves offset at its
// data. At the end marker it returns io.EOF.
//
// Headers are parsed in the buffer, and stay there until parseHeaders has
// understood all of them. If it does not, archive/tar reads them from the first
// one on.
func (r *tarReader) readHeaders() error {
	if err := r.skipTo(roundToBlocks(r.dataEnd)); err != nil { // what is left of the entry before
		return err
	}
	r.entry.begin = r.offset
	b, err := r.archive.Peek(max(tarBlock, r.archive.Buffered()))
	name, size, n := parseHeaders(b)
	for n > len(b) && err == nil {
		b, err = r.archive.Peek(n)
		name, size, n = parseHeaders(b)
	}
	switch {
	case err != nil && err != io.EOF && err != bufio.ErrBufferFull:
		return explainEOF(err)
	case 0 < n && n <= len(b):
		r.entry = tarEntry{
			name:  string(name),
			begin: r.offset,
			size:  size,
			kind:  tar.TypeReg,
		}
		dataBegin := r.offset + int64(n)
		r.dataEnd = dataBegin + size
		return r.skipTo(dataBegin)
	case len(b) >= tarBlock:
		return r.readHeadersSlowly(bytes.Clone(b[:min(len(b), 2*tarBlock)]))
	case r.offset > 0:
		return errTruncated
	}
	return fmt.Errorf("it has only %d bytes, so it is no tar archive, or it has been truncated: %s",
		len(b), quote(b))
}

// readHeadersSlowly reads headers with archive/tar that parseHeaders does not
// know. start is their first block, and the next if the buffer has it. If the
// first block is zero, they are the end marker. As in archive/tar, the marker's
// second block may be missing.
//
// archive/tar reads no byte beyond the headers, so offset is where the data
// begins, and another reader can read the next entry. archive/tar does not
// document that; the tests would notice a change.
//
// An entry of an unknown type is a file, as POSIX says.
//
// Two kinds of entries have less data than their size says. Links, devices and
// folders have none. A sparse file is stored without its holes, and only
// archive/tar knows how long that is. So a sparse file is refused, and ends the
// shard: to skip it would mean to read it.
func (r *tarReader) readHeadersSlowly(start []byte) error {
	block, records := start[:tarBlock], start[tarBlock:]
	marker := isZero(block)
	isPAX := block[156] == tar.TypeXHeader || block[156] == tar.TypeXGlobalHeader
	header, err := tar.NewReader(r).Next()
	switch {
	case err == io.EOF && marker && r.entry.begin == 0:
		return errors.New("the archive is empty: it begins with zeros")
	case err == io.EOF && marker:
		r.entry = tarEntry{begin: r.entry.begin}
		return io.EOF
	case err == io.EOF: // there was a long name, but no entry after it
		return errTruncated
	case err == tar.ErrHeader && isPAX && checkHeader(block):
		records, _, _ = bytes.Cut(records, []byte{0})
		return fmt.Errorf("its PAX records, %s, or the header behind them, are not valid: %w",
			quote(records), err)
	case err == tar.ErrHeader && r.entry.begin == 0:
		return fmt.Errorf("it begins with %s, so it may be no tar archive: %w",
			quote(block[:30]), err)
	case err != nil && err != tar.ErrInsecurePath: // no name is used as a path here
		return fmt.Errorf("the headers that come next: %w", explainEOF(err))
	}
	r.entry = tarEntry{name: header.Name, size: header.Size, begin: r.entry.begin}
	// The limit, which no archive reaches, lets the padding be added without
	// overflow.
	r.dataEnd = r.offset + min(header.Size, 1<<62)
	switch header.Typeflag {
	case tar.TypeLink:
		r.entry.kind = tar.TypeLink
		r.entry.target = header.Linkname
		r.dataEnd = r.offset
	case tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		r.dataEnd = r.offset
	case tar.TypeXGlobalHeader, 'D', 'N', 'V':
		// GNU: the names in a folder, old long names, the label of a volume
	case 'M', 'X':
		// GNU: the rest of a file in another volume; Solaris: PAX records,
		// which may rename the next file
		return fmt.Errorf("its type is %q, which cannot be read: use --format=posix and one volume",
			header.Typeflag)
	default:
		r.entry.kind = tar.TypeReg
	}
	// PAX has three formats of sparse files: 0.0, from whose records
	// archive/tar makes a map, 0.1, which has a map, and 1.0.
	sparse := header.Typeflag == tar.TypeGNUSparse ||
		header.PAXRecords["GNU.sparse.map"] != "" || header.PAXRecords["GNU.sparse.major"] != ""
	if sparse {
		return errors.New("it is a sparse file, which is not read: " +
			"make the archive without tar --sparse")
	}
	return nil
}

// Read reads from the archive and counts the bytes, for archive/tar and
// readData.
func (r *tarReader) Read(p []byte) (int, error) {
	n, err := r.archive.Read(p)
	r.offset += int64(n)
	return n, err
}

// readData reads the data of the entry, a regular file. Its size has been
// checked.
func (r *tarReader) readData() ([]byte, error) {
	if r.wholeSize > 0 {
		// The data has no capacity beyond its end, so that append does not
		// overwrite the next file.
		data, err := r.archive.Peek(int(r.entry.size))
		return slices.Clip(data), explainEOF(err)
	}
	data := make([]byte, r.entry.size)
	_, err := io.ReadFull(r, data)
	return data, explainEOF(err)
}

// explainEOF returns errTruncated for an end that comes too early.
func explainEOF(err error) error {
	if replaceEOF(err) == io.ErrUnexpectedEOF {
		return errTruncated
	}
	return err
}

// replaceEOF returns io.ErrUnexpectedEOF for io.EOF, because more bytes were
// promised, and any other err as it is.
func replaceEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func roundToBlocks(n int64) int64 { return (n + tarBlock - 1) &^ (tarBlock - 1) }

// skipTo passes over the bytes up to an offset. If the offset is far behind the
// buffer, and the shard can seek, the bytes are not read. A seek empties the
// buffer, so a short one would cost more than it saves. A seek far beyond the
// end of a file succeeds on one file system and fails on another, so the last
// block is read: if it is missing, the error is errTruncated on both.
func (r *tarReader) skipTo(to int64) error {
	seeker, ok := r.source.Reader.(io.Seeker) // a decompressor is none
	ahead := to - r.offset - int64(r.archive.Buffered())
	if ok && ahead > tarBuffer {
		_, err := seeker.Seek(ahead-tarBlock, io.SeekCurrent)
		if err == nil { // the Seek of a pipe fails
			r.archive.Reset(r.source)
			r.offset = to - tarBlock
		}
	}
	for r.offset < to {
		n, err := r.archive.Discard(int(min(to-r.offset, tarBuffer)))
		r.offset += int64(n)
		if err != nil {
			return explainEOF(err)
		}
	}
	return nil
}

// drainShard reads the rest of the shard, after the end marker, and returns
// io.EOF if all is well. The rest must be zeros. Another archive, appended with
// cat, is an error: archive/tar and the peers leave its records out in silence.
//
// tar fills up its last 10 KiB with zeros, or more with -b. So more than 64 KiB
// of zeros must be fewer than a power of two, up to 1 MiB, that divides the
// length of the archive.
//
// The rest is read to its end because only there a decompressor checks its sum,
// and the web reader the length of the object.
func (r *tarReader) drainShard() error {
	zeros := int64(0)
	for {
		rest, err := r.archive.Peek(max(1, r.archive.Buffered()))
		zeros += int64(len(rest))
		length := r.offset + zeros
		power := length & -length // the largest power of two that divides length
		switch {
		case !isZero(rest):
			return errors.New("there is data after the end marker, " +
				"perhaps another archive, which is not read")
		case zeros >= 1<<20, err == io.EOF && zeros > 64<<10 && zeros >= power:
			return errZeros
		case err == gzip.ErrHeader:
			return fmt.Errorf("what follows the compressed archive is not compressed: %w", err)
		case err != nil:
			return err
		}
		r.archive.Discard(len(rest))
	}
}

// isZero reports whether all bytes are zero: the first is, and each other byte
// equals the one before it.
func isZero(b []byte) bool {
	return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

// parseHeaders parses the headers of a regular file at the beginning of b. n
// says what it found:
//
//	0 < n <= len(b)   name and size; the headers are b[:n], the data follows
//	n > len(b)        b ends too early; parseHeaders needs at least n bytes
//	n == 0            headers that are left to archive/tar
//
// parseHeaders is several times faster than archive/tar, which makes a map of
// the PAX records and a Header with all fields. Both return the same name and
// size, because whatever they might read differently is left to archive/tar.
// FuzzTar and TestTarHeaders compare the two. parseHeaders knows these types of
// headers, at offset 156:
//
//   - '0' is a regular file. Old archives have a NUL instead, or '7', which
//     archive/tar reads.
//   - 'x' stands before PAX records, which replace those of any 'x' before it.
//     Python writes one for each file, because a header has no fractions of a
//     second.
//   - 'L' stands before a name of any length, as GNU tar writes it. It takes
//     precedence over PAX.
//   - 'K' stands before the target of a link, which regular files do not have.
func parseHeaders(b []byte) (name []byte, size int64, n int) {
	var paxName, gnuName []byte // from the headers before that of the file
	for n+tarBlock <= len(b) {
		header := b[n : n+tarBlock]
		n += tarBlock
		kind := header[156]
		length := parseOctal(header[124:136]) // of the data behind the header
		switch {
		case length < 0, !checkHeader(header):
			return nil, 0, 0
		case kind == tar.TypeReg && len(gnuName) > 0:
			return gnuName, length, n
		case kind == tar.TypeReg && paxName != nil:
			return paxName, length, n
		case kind == tar.TypeReg:
			name, _, _ = bytes.Cut(header[:100], []byte{0})
			if header[345] != 0 { // it is a POSIX header, or checkHeader would not know it
				prefix, _, _ := bytes.Cut(header[345:500], []byte{0})
				name = slices.Concat(prefix, []byte{'/'}, name)
			}
			return name, length, n
		case length > tarBuffer,
			kind != tar.TypeXHeader && kind != tar.TypeGNULongName && kind != tar.TypeGNULongLink:
			return nil, 0, 0
		}
		data := b[n:]
		n += int(roundToBlocks(length))
		if n > len(b) {
			return nil, 0, n + tarBlock
		}
		data = data[:length]
		known := true
		switch kind {
		case tar.TypeXHeader:
			paxName, known = parsePAX(data)
		case tar.TypeGNULongName:
			gnuName, _, _ = bytes.Cut(data, []byte{0})
		}
		if !known {
			return nil, 0, 0
		}
	}
	return nil, 0, n + tarBlock
}

// posixMagic marks the headers whose names have a prefix.
const posixMagic = "ustar\x00"

// checkHeader reports whether a header is sound and has nothing that is unknown
// here. These are the rules, with offsets in the header:
//
//   - The checksum, at 148, is that of unsigned bytes. archive/tar accepts
//     signed bytes, too, from very old tars.
//   - archive/tar refuses a header with a malformed number, so numbers that
//     nobody needs here are parsed, too: mode, uid, gid and mtime, and those of
//     devices, at 329. They are octal, or in base 256 after 0x80, as GNU tar
//     writes large uids; 7 bytes in base 256 cannot overflow.
//   - POSIX headers, whose magic is at 257, have a prefix of the name, at 345,
//     of 155 bytes. star's headers end in "tar", and have a shorter prefix. GNU
//     headers have other fields at 345, which are zero in most files. v7, the
//     oldest format, has nothing there.
func checkHeader(b []byte) bool {
	if string(b[257:263]) == posixMagic {
		if string(b[508:]) == "tar\x00" {
			return false
		}
	} else if !isZero(b[345:]) {
		return false
	}
	numbers := [][]byte{b[100:108], b[108:116], b[116:124], b[136:148], b[329:337], b[337:345]}
	for _, number := range numbers {
		base256 := number[0] == 0x80 && len(number) == 8
		if !base256 && parseOctal(number) < 0 {
			return false
		}
	}
	return parseOctal(b[148:156]) == sumHeader(b)
}

// parsePAX reads PAX records. It returns the path of the next file, or nil if
// no record says it. A record is a length, a key and a value. The length counts
// the whole record, with its own digits and the end of the line:
//
//	28 mtime=1700000000.1234567
//	22 path=größe/a.jpg
//
// If a key comes twice, the last record counts. ok is false if archive/tar
// might refuse the records, or if they say more than a name: by NULs, negative
// numbers, an empty value, which takes back the record before it, a size, which
// only files of 8 GiB or more need, or the map of a sparse file. All other keys
// have no effect on a regular file.
func parsePAX(b []byte) (path []byte, ok bool) {
	ok = bytes.IndexByte(b, 0) < 0
	for len(b) > 0 && ok {
		length, _, _ := bytes.Cut(b, []byte{' '})
		start := int64(len(length)) + 1
		end := parseDigits(length, 10)
		if end <= start || end > int64(len(b)) || b[end-1] != '\n' {
			return nil, false
		}
		key, value, _ := bytes.Cut(b[start:end-1], []byte{'='})
		b = b[end:]
		switch string(key) {
		case "path":
			path = value
		case "uid", "gid":
			ok = parseDigits(value, 10) >= 0
		case "mtime", "atime", "ctime":
			seconds, fraction, _ := bytes.Cut(value, []byte{'.'})
			ok = len(seconds) > 0 && parseDigits(seconds, 10) >= 0 && parseDigits(fraction, 10) >= 0
		case "", "size":
			ok = false
		default:
			ok = !bytes.HasPrefix(key, []byte("GNU.sparse."))
		}
		ok = ok && len(value) > 0
	}
	return path, ok
}

// parseOctal reads a number of a header, with spaces or NULs after it, or
// returns -1. An empty field is 0. A space in front is allowed but unusual, and
// left to archive/tar.
func parseOctal(field []byte) int64 {
	end := len(field)
	for end > 0 && (field[end-1] == ' ' || field[end-1] == 0) {
		end--
	}
	return parseDigits(field[:end], 8)
}

// parseDigits reads a number of at most 18 digits, which cannot overflow, or
// returns -1. No digits are 0.
func parseDigits(b []byte, base int64) (n int64) {
	for _, c := range b {
		d := int64(c) - '0'
		if d < 0 || d >= base || len(b) > 18 {
			return -1
		}
		n = n*base + d
	}
	return n
}

// sumHeader adds up the bytes of a header, in which the checksum itself counts
// as spaces. It adds eight bytes at a time, to four sums of 16 bits, none of
// which exceeds 64 * 2 * 255. That is about three times as fast as byte by
// byte.
func sumHeader(b []byte) int64 {
	const even = 0x00ff00ff00ff00ff
	block := (*[tarBlock]byte)(b) // an array, so that no bounds are checked
	sums := uint64(0)
	for i := 0; i < len(block); i += 8 {
		word := binary.LittleEndian.Uint64(block[i:])
		sums += word&even + word>>8&even
	}
	sum := int64(sums&0xffff + sums>>16&0xffff + sums>>32&0xffff + sums>>48)
	for _, c := range block[148:156] {
		sum += ' ' - int64(c)
	}
	return sum
}

// A TarDataset is a Dataset with the same records as Tar. Compressed shards
// cannot be read by index. Get may be called concurrently. A TarDataset keeps
// each shard open until Close.
//
// PyTorch: wids, the indexed form of webdataset.
type TarDataset struct {
	records Dataset[Record]
	shards  []*tarShard
}

// A tarShard is the Dataset of one shard's records.
type tarShard struct {
	name   string
	file   *os.File
	places []recordPlace
}

// A recordPlace says where a record is: from the headers of its first file to
// those of the file after it, or to the end marker, both included, because only
// they show that the record has ended. sum is recordReader's.
type recordPlace struct {
	begin, end int64
	sum        uint64
}

// OpenTar opens tar shards, which are files, as one data set. It reads all
// headers, sixteen shards at a time, and keeps 24 bytes for each record. While
// it reads a shard, it keeps the keys, too, and needs some 110 bytes. Every
// start of a program reads the headers again, so shards on a slow disk or a
// network are better streamed, by Tar.
//
// OpenTar returns an error for a shard that is damaged, truncated or
// compressed, in which a key comes again, or that has a sparse file, files but
// no record, or more zeros after its end marker than Tar allows. The number of
// records does not change afterwards. A record with a fault of its own (a field
// that comes twice, a hard link, more than 1 GiB, which is Tar's MaxRecord of
// 0) has its index, and Get returns the error. Errors of both kinds are a
// TarError.
func OpenTar(paths ...string) (*TarDataset, error) {
	d := new(TarDataset)
	var datasets []Dataset[Record]
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var running sync.WaitGroup
	limit := make(chan struct{}, 16)
	for _, name := range paths {
		shard := &tarShard{name: name}
		d.shards = append(d.shards, shard)
		datasets = append(datasets, shard)
		running.Go(func() {
			limit <- struct{}{}
			if err := shard.scan(ctx); err != nil {
				cancel(err) // which ends the other scans
			}
			<-limit
		})
	}
	running.Wait()
	err := context.Cause(ctx)
	if len(paths) == 0 {
		err = errors.New("there are no shards")
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("dataloader: OpenTar: %w", err)
	}
	d.records = Concat(datasets...)
	return d, nil
}

// scan opens the shard, and notes where its records are.
func (s *tarShard) scan(ctx context.Context) error {
	r := newRecordReader(s.name, defaultMaxRecord)
	r.wanted = []string{} // no field: files are not loaded
	keys := map[string]bool{}
	err := errorIf(strings.Contains(s.name, "://"), "OpenTar reads files only; Tar reads URLs too")
	if err == nil {
		s.file, err = os.Open(s.name)
	}
	if err == nil {
		err = r.enterShard(ctx, s.file, tarState{})
	}
	if r.compressed {
		err = errors.New("it is compressed, and cannot be read at an offset: " +
			"decompress it, or use Tar")
	}
	for err == nil {
		begin := r.entry.begin
		key := r.nextKey
		if keys[key] {
			err = keyComesAgain(key)
			break
		}
		keys[key] = key != ""
		if err = r.readRecord(); err == nil {
			s.places = append(s.places, recordPlace{begin, r.offset, r.sum})
		}
	}
	if err == io.EOF {
		return nil
	}
	return r.newError(err)
}

// Len returns the number of records.
func (d *TarDataset) Len() int { return d.records.Len() }

// Get reads record i. It returns an error if names or sizes in the record have
// changed since OpenTar read them. The files of a record share one piece of
// memory if the record has less than 256 KiB with its headers.
func (d *TarDataset) Get(ctx context.Context, i int) (Record, error) {
	return d.records.Get(ctx, i)
}

// Len returns the number of records in the shard.
func (s *tarShard) Len() int { return len(s.places) }

// Get reads one record as Tar does, with the headers or the end marker behind
// it, up to 256 KiB at once. OpenTar has read the same headers, so any fault
// except the record's own shows that the shard has changed.
func (s *tarShard) Get(ctx context.Context, i int) (Record, error) {
	place := s.places[i]
	r := newRecordReader(s.name, defaultMaxRecord)
	part := io.NewSectionReader(s.file, place.begin, place.end-place.begin)
	if part.Size() <= tarBuffer {
		r.wholeSize = int(part.Size())
	}
	err := r.enterShard(ctx, part, tarState{Offset: place.begin})
	if err == nil {
		err = r.readRecord()
	}
	switch {
	case err == nil && r.sum == place.sum && !r.compressed:
		return r.item.Value, r.item.Err
	case err == nil:
		err = errors.New("a file has another name or size")
	}
	if ctx.Err() == nil && !errors.As(err, new(*fs.PathError)) {
		err = fmt.Errorf("the shard has changed since OpenTar has read it: %w", err)
	}
	return Record{}, r.newError(err)
}

// Close closes the shards. Get returns an error afterwards.
func (d *TarDataset) Close() error {
	var err error
	for _, shard := range d.shards {
		if shard.file != nil { // otherwise OpenTar has failed
			err = errors.Join(err, shard.file.Close())
		}
	}
	return err
}

// A TarWriter writes records to a tar shard. The same records make the same
// bytes: the fields are sorted, and the headers have no time and no owner. A
// TarWriter writes in small pieces, so put a bufio.Writer between it and a
// file. It must not be used concurrently.
//
// PyTorch: webdataset.TarWriter, without its encoders.
type TarWriter struct {
	tar  *tar.Writer
	keys map[string]bool // of the records so far
}

// NewTarWriter returns a TarWriter that writes to w, which may be a file, or a
// gzip.Writer on top of one.
func NewTarWriter(w io.Writer) *TarWriter {
	return &TarWriter{tar.NewWriter(w), map[string]bool{}}
}

// Write writes a record, without its Shard. If the record could not be read
// again as it is, Write returns an error and writes nothing. A record must have
// files, and a key that no other record of the shard has. The key must be a
// relative path without a dot in its last element. Each field must occur once,
// be in lower case, not be empty and have no slash; it must begin neither with
// a dot, as the extensions of filepath.Ext do, nor with the key and a dot. Key
// and field together must have fewer than a million bytes. Write does not know
// the MaxRecord of the reader.
func (w *TarWriter) Write(r Record) error {
	byName := func(a, b File) int { return strings.Compare(a.Name, b.Name) }
	files := slices.SortedFunc(slices.Values(r.Files), byName)
	err := w.checkRecord(r.Key, files)
	for i := 0; i < len(files) && err == nil; i++ {
		name := r.Key + "." + files[i].Name
		data := files[i].Data
		err = w.tar.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     name,
			Size:     int64(len(data)),
			Mode:     0o444,
		})
		if err == nil {
			_, err = w.tar.Write(data)
		}
	}
	if err != nil {
		return fmt.Errorf("dataloader: TarWriter: record %s: %w", quote(r.Key), err)
	}
	w.keys[r.Key] = true
	return nil
}

// maxName is the length of the longest name. archive/tar neither reads nor
// writes headers of more than 1 MiB.
const maxName = 1_000_000

// checkRecord says why a record, with its files sorted, could not be read again
// as it is.
func (w *TarWriter) checkRecord(key string, files []File) error {
	inside := !strings.HasPrefix(key, "/") && !slices.Contains(strings.Split(key, "/"), "..")
	err := cmp.Or(
		errorIf(len(files) == 0, "it has no files"),
		errorIf(w.keys[key], "the shard has a record with this key already"),
		errorIf(!inside, `the key must be a relative path without ".."`))
	if err != nil {
		return err
	}
	base := path.Base(key)
	for i, f := range files {
		name := key + "." + f.Name
		readKey, readField, ok := splitName(name)
		extension := strings.TrimPrefix(path.Base("/"+f.Name), base)
		short, dotted := strings.CutPrefix(extension, ".")
		switch {
		case len(name) > maxName:
			return fmt.Errorf("the name of file %d has %d bytes, must have at most %d",
				i, len(name), maxName)
		case ok && dotted:
			return fmt.Errorf("field %s must be %s", quote(f.Name), quote(short))
		case !ok:
			return fmt.Errorf("file %s would be skipped when it is read, as are %s",
				quote(name), skippedFiles)
		case readKey != key || readField != f.Name:
			return fmt.Errorf("file %s would be read as field %s of record %s",
				quote(name), quote(readField), quote(readKey))
		case f.Name == "" || strings.Contains(name, "\x00"):
			return fmt.Errorf("field %s must not be empty, and file %s must not have a NUL",
				quote(f.Name), quote(name))
		case i > 0 && f.Name == files[i-1].Name:
			return fmt.Errorf("field %s comes twice", quote(f.Name))
		}
	}
	return nil
}

// Close writes the end marker; a shard without one counts as truncated. Close
// does not close the underlying writer.
func (w *TarWriter) Close() error {
	if err := w.tar.Close(); err != nil {
		return fmt.Errorf("dataloader: TarWriter: %w", err)
	}
	return nil
}

// Where shards come from.

// maxExpand is the largest number of names that a pattern may stand for.
const maxExpand = 1 << 20

// Expand lists the names that a pattern stands for, with braces as in bash:
// "{a,b}" stands for a and b, "{8..11}" for the numbers from 8 to 11, and
// "{008..011}" for the same with zeros in front. Numbers may count down; those
// with a plus sign, and -0, get other zeros than in bash. If there are several
// braces, the last changes fastest. A pattern without braces stands for itself.
//
// Expand returns an error for braces within braces, a brace without its other
// half, braces with neither a comma nor two numbers, such as "{000-146}", and
// more than 2^20 names. bash leaves some of these unchanged, so that a typing
// error shows up only as a missing file. Letters, steps and backslashes, which
// bash knows, are not needed for names of shards.
func Expand(pattern string) ([]string, error) {
	names := []string{""} // what the pattern stands for, up to rest
	for rest := pattern; rest != ""; {
		before, after, opened := strings.Cut(rest, "{")
		inside, after, closed := strings.Cut(after, "}")
		choices := []string{""}
		var err error
		if opened != closed || strings.ContainsAny(before+inside, "{}") {
			err = errors.New("braces must come in pairs, and must not be nested")
		} else if opened {
			choices, err = expandBraces(inside)
		}
		if err == nil && len(choices) > maxExpand/len(names) {
			err = errTooMany
		}
		if err != nil {
			return nil, fmt.Errorf("dataloader: Expand(%s): %w", quote(pattern), err)
		}
		var longer []string
		for _, name := range names {
			for _, choice := range choices {
				longer = append(longer, name+before+choice)
			}
		}
		names = longer
		rest = after
	}
	return names, nil
}

var errTooMany = fmt.Errorf("it stands for more than %d names", maxExpand)

// expandBraces lists what a pair of braces stands for. If a number has zeros in
// front, all numbers get the width of the wider end, sign included, as in bash.
func expandBraces(inside string) (all []string, err error) {
	if strings.Contains(inside, ",") {
		return strings.Split(inside, ","), nil
	}
	fromText, toText, _ := strings.Cut(inside, "..")
	from, err1 := strconv.ParseInt(fromText, 10, 64)
	to, err2 := strconv.ParseInt(toText, 10, 64)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%s must be a list such as {a,b}, or numbers such as {000..146}",
			quote("{"+inside+"}"))
	}
	if uint64(max(from, to)-min(from, to)) >= maxExpand {
		return nil, errTooMany
	}
	width := 0
	if fmt.Sprint(from) != fromText || fmt.Sprint(to) != toText {
		width = max(len(fromText), len(toText))
	}
	step := int64(1)
	if to < from {
		step = -1
	}
	for n := from; ; n += step {
		all = append(all, fmt.Sprintf("%0*d", width, n))
		if n == to {
			return all, nil
		}
	}
}

// OpenShard is the Opener for files, which may be file URLs, and for http and
// https URLs.
//
// A connection that breaks, or that delivers nothing for a minute, is resumed
// at the next byte with a request for a range. Answers of 408, 429 and 5xx,
// even of a proxy, are asked for again; others are errors at once. Six failures
// without a byte between them are an error. An object is an error if it is not
// as long as was promised, or has changed between two requests. If a server
// sends neither ETag nor Last-Modified, an object that was replaced by one of
// the same length goes unnoticed: its records may be of both.
//
// Before it asks again, OpenShard waits: one second after the first failure,
// then twice as long each time, 16 seconds after the fifth, less up to a half
// at random. If the server says Retry-After, OpenShard waits at least that
// long, but at most two minutes.
//
// Where the system has deadlines for pipes, a read of a silent named pipe ends
// with the context. To open the pipe, OpenShard waits for its writer, even if
// ctx has ended.
//
// Other stores need other Openers. Requests are made with http.DefaultClient,
// whose Transport may add headers, as in the recipe Example_bearerToken.
// Nothing else shows what is asked for again: wrap the Transport to log or
// count it. OpenShard may be called concurrently.
func OpenShard(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	u, err := url.Parse(name)
	bad := checkURL(name)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case !strings.Contains(name, "://"):
		return openFile(ctx, name, offset)
	case bad != nil:
		return nil, fmt.Errorf("%s: %w", quote(redactURL(name)), bad)
	case err == nil && u.Scheme == "file" && (u.Host == "" || u.Host == "localhost"):
		file := u.Path
		if filepath.VolumeName(strings.TrimPrefix(file, "/")) != "" {
			file = file[1:] // on Windows, as in file:///C:/x.tar
		}
		return openFile(ctx, filepath.FromSlash(file), offset)
	case err == nil && isWebURL(u):
		w := webSettings{
			client:   http.DefaultClient,
			attempts: 6,
			stall:    time.Minute,
			wait:     pause,
		}
		return w.open(ctx, name, offset)
	}
	return nil, fmt.Errorf("%s: OpenShard reads files and http and https URLs, "+
		"which name a host; TarOptions.Open takes other Openers", quote(redactURL(name)))
}

// checkURL returns an error for a URL with a # or, before its query, a % that
// is no escape: a shard of another name would be read, or none.
func checkURL(name string) error {
	if !strings.Contains(name, "://") {
		return nil
	}
	if strings.Contains(name, "#") {
		return errors.New("in a URL, # begins what no server is asked for: " +
			"write %23 for the character #")
	}
	if _, err := url.Parse(name); errors.As(err, new(url.EscapeError)) {
		return errors.New("in a URL, % begins an escape of two hexadecimal digits, " +
			"which a host does not have: write %25 for the character %")
	}
	return nil
}

// isWebURL reports whether the web reader can read a URL.
func isWebURL(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// openFile opens a file at an offset, or a pipe at offset 0.
func openFile(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if offset != 0 {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { file.SetReadDeadline(time.Now()) })
	return &shardFile{file, stop}, nil
}

// A shardFile is a file whose reads end with a context, if the system has
// deadlines for it, as for a pipe.
type shardFile struct {
	*os.File
	stop func() bool
}

// Close closes the file.
func (f *shardFile) Close() error {
	f.stop()
	return f.File.Close()
}

// redactURL removes user, password, query and fragment from a URL, because a
// query may be a signature. A name that is not quite a URL, such as a command
// with one in it, loses all but its scheme. A name without "://" is returned as
// it is.
func redactURL(name string) string {
	if !strings.Contains(name, "://") {
		return name
	}
	u, err := url.Parse(name)
	if err != nil || u.Opaque != "" || u.Scheme == "" {
		scheme, _, _ := strings.Cut(strings.Fields(name)[0], ":")
		return scheme + ":(not a URL)"
	}
	redacted := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return redacted.String()
}

// webSettings say how to read from the web: how many requests in a row may fail
// without a byte, and for how long a server may be silent. Tests have their own
// client and wait.
//
// A whole object may take any time: a shard may have 100 GB, and a training
// loop may stop for an hour between two records.
type webSettings struct {
	client   *http.Client
	attempts int
	stall    time.Duration
	wait     func(ctx context.Context, d time.Duration) error
}

// open asks for an object, from offset on.
func (w webSettings) open(ctx context.Context, name string, offset int64) (io.ReadCloser, error) {
	o := &webObject{webSettings: w, url: name, offset: offset, size: -1}
	o.ctx, o.stop = context.WithCancelCause(ctx)
	if _, err := o.Read(nil); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// A webObject is an object in the web as one sequence of bytes, however many
// requests that takes:
//
//	Read ──→ sendRequest → checkAnswer   an answer with a body
//	  ├────→ readBody                    reads from the answer
//	  └────→ waitToRetry                 ends a failed request, and waits
type webObject struct {
	webSettings
	url string

	// ctx ends with the range over the stream, or when Close calls stop.
	ctx  context.Context
	stop context.CancelCauseFunc

	// offset is that of the next byte. size is -1 while it is unknown. tag and
	// modified are ETag and Last-Modified. If one of these, or size, changes
	// between two answers, the object has changed.
	offset, size  int64
	tag, modified string

	// failures counts the requests that have failed since the last byte.
	failures int

	// These belong to the request that is under way; body is nil if there is
	// none. stallTimer cancels the request. It runs only while the server is
	// waited for, so that a slow reader does not count as a silent server.
	// surplus counts the bytes of body before offset, which a server without
	// ranges sends.
	cancel     context.CancelCauseFunc
	stallTimer *time.Timer
	body       io.ReadCloser
	surplus    int64
}

// errStalled is the error of a server that delivers nothing.
var errStalled = errors.New("the server has stalled")

// Read reads from the object. If p is empty, Read waits for an answer.
func (o *webObject) Read(p []byte) (n int, err error) {
	for o.offset != o.size {
		var minWait time.Duration
		if o.body == nil {
			minWait, err = o.sendRequest()
		} else {
			n, err = o.readBody(p)
			if n > 0 || err == io.EOF {
				return n, err
			}
		}
		if err != nil {
			err = o.waitToRetry(err, minWait)
		}
		if err != nil || len(p) == 0 && o.body != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

// readBody reads from the answer. If the length is unknown, the answer ends
// where the object does, and readBody returns io.EOF.
func (o *webObject) readBody(p []byte) (int, error) {
	o.stallTimer.Reset(o.stall)
	n, err := o.body.Read(p)
	o.stallTimer.Stop()
	dropped := min(int64(n), o.surplus)
	o.surplus -= dropped
	n = copy(p, p[dropped:n])
	o.offset += int64(n)
	switch {
	case o.size >= 0 && o.offset > o.size: // without a length, the answer may be of any
		return 0, errChanged
	case n > 0:
		o.failures = 0
		return n, nil
	case err == nil, err == io.EOF && o.size < 0:
		return 0, err
	}
	return 0, redactError(replaceEOF(err))
}

// Close ends the request that is under way. Later reads return os.ErrClosed.
func (o *webObject) Close() error {
	o.stop(os.ErrClosed)
	o.endRequest()
	return nil
}

func (o *webObject) endRequest() {
	o.stallTimer.Stop()
	o.cancel(nil)
	if o.body != nil {
		o.body.Close()
		o.body = nil
	}
}

// A permanentError is an error that another request would meet again: the
// object is not there, or has changed.
type permanentError struct{ error }

// Unwrap returns the error.
func (e permanentError) Unwrap() error { return e.error }

var errChanged = permanentError{errors.New("the object has changed while it was read")}

// newStatusError makes an error of a status. It uses HTTP's words, because the
// server's own may tell a secret. Status 416 means that the object ends before
// the byte that was asked for.
func newStatusError(code int) error {
	err := fmt.Errorf("%d %s", code, http.StatusText(code))
	switch {
	case code == http.StatusRequestTimeout || code == http.StatusTooManyRequests || code >= 500:
		return err
	case code == http.StatusRequestedRangeNotSatisfiable:
		err = fmt.Errorf("%w: %w", err, io.ErrUnexpectedEOF)
	}
	return permanentError{err}
}

// waitToRetry ends a request that has failed with err, and waits before the
// next. It returns an error if there must be no other request.
//
// The wait doubles with each failure. It is up to a half shorter at random, so
// that many machines do not come back at once, but not shorter than minWait.
// Any byte proves that the server works, and sets failures to 0, so a
// connection that breaks every few seconds still delivers a shard.
func (o *webObject) waitToRetry(err error, minWait time.Duration) error {
	o.endRequest()
	if o.ctx.Err() != nil {
		return context.Cause(o.ctx)
	}
	o.failures++
	if errors.As(err, new(permanentError)) || o.failures >= o.attempts {
		return fmt.Errorf("get %s from byte %d, attempt %d: %w",
			redactURL(o.url), o.offset, o.failures, err)
	}
	wait := time.Second << (o.failures - 1)
	wait -= rand.N(wait / 2)
	return o.wait(o.ctx, max(wait, minWait))
}

// sendRequest sends one request for the rest of the object. If it fails,
// minWait is the shortest wait before the next.
//
// Every error of http.Client is a url.Error. Only its cause is returned,
// because the URL in it may hold a password.
func (o *webObject) sendRequest() (minWait time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(o.ctx)
	o.cancel = cancel
	o.stallTimer = time.AfterFunc(o.stall, func() { cancel(errStalled) })
	defer o.stallTimer.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return 0, permanentError{errors.New("this is not a URL")}
	}
	req.Header.Set("Accept-Encoding", "identity") // or offsets would count other bytes
	if o.offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", o.offset))
		if strings.HasPrefix(o.tag, `"`) { // a weak tag, W/"…", is not allowed here
			req.Header.Set("If-Range", o.tag)
		} else if o.modified != "" {
			req.Header.Set("If-Range", o.modified)
		}
	}
	client := *o.client
	client.Transport = webTransport{cmp.Or(client.Transport, http.DefaultTransport)}
	resp, err := client.Do(req)
	err = errors.Unwrap(err)
	switch {
	case err == nil:
		o.body = resp.Body
		return o.checkAnswer(resp)
	case resp != nil, // CheckRedirect has refused a redirect
		errors.Is(err, http.ErrSchemeMismatch),
		errors.As(err, new(*tls.CertificateVerificationError)),
		errors.As(err, new(*net.AddrError)):
		err = permanentError{err}
	}
	return 0, err
}

// errRedirect is the error of a redirect that cannot be followed. It does not
// name the target, whose query may be a secret.
var errRedirect = permanentError{
	errors.New("the server redirects to something other than an http or https URL"),
}

// A webTransport sends the requests of a web reader.
type webTransport struct{ base http.RoundTripper }

// RoundTrip sends a request for http.Client, perhaps to the target of a
// redirect. For a redirect http.Client drops Close, without which the
// connection would outlive the range, and sends the query to the target as
// Referer. If the target is not a URL, the error of http.Client quotes it, so
// RoundTrip checks the target first.
func (t webTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Close = true // no connection outlives the range over the stream
	req.Header.Del("Referer")
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, redactError(err)
	}
	target, err := resp.Location()
	redirects := resp.StatusCode/100 == 3 && err != http.ErrNoLocation
	if redirects && (err != nil || !isWebURL(target)) {
		resp.Body.Close()
		return nil, errRedirect
	}
	return resp, nil
}

// redactError returns the part of a transport's error that quotes nothing that
// the server has sent, such as the Location of a redirect with a signature. It
// looks only at types and values, because the texts of net/http may change, and
// names only the type of an error that it does not know.
func redactError(err error) error {
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		err = cause
		switch err.(type) {
		case *net.OpError, *tls.CertificateVerificationError, tls.RecordHeaderError:
			return err
		}
	}
	switch err {
	case io.EOF, io.ErrUnexpectedEOF, errStalled:
		return err
	}
	// If a proxy refuses to connect, the error is its status.
	for code := 400; code < 600; code++ {
		if err.Error() == http.StatusText(code) {
			return newStatusError(code)
		}
	}
	return fmt.Errorf("the request has failed with a %T", err)
}

// checkAnswer checks that an answer is the rest of the object, or all of it:
//
//	        Content-Range                asked for byte 0   for a later byte
//	200     none, or 0 to the last byte  all of it          all: the first bytes
//	                                                        are dropped
//	        any other                    an error           an error (RFC 9110,
//	                                                        14.4: no meaning)
//	206     0 to the last byte           all of it          all
//	        from an earlier byte on      an error           what comes twice is
//	                                                        dropped
//	        from a later byte on, none   an error           an error
//	other                                an error           an error
//
// The object has changed if the size does, or the ETag, or without equal strong
// ETags the Last-Modified. If If-Range was no longer right, the answer is a 200
// that shows it; a 206 with the same ETag made weak, by a proxy, confirms it.
func (o *webObject) checkAnswer(resp *http.Response) (minWait time.Duration, err error) {
	size := resp.ContentLength
	code := resp.StatusCode
	if code != http.StatusOK && code != http.StatusPartialContent {
		return retryTime(resp.Header), newStatusError(code)
	}
	var first, last int64
	answer := resp.Header.Get("Content-Range")
	if code == http.StatusPartialContent || answer != "" {
		n, _ := fmt.Sscanf(answer, "bytes %d-%d/%d", &first, &last, &size)
		if n < 3 {
			size = -1 // "*" stands for an unknown size
		}
		isAll := n == 3 && first == 0 && last == size-1
		isRest := code == http.StatusPartialContent && o.offset > 0 &&
			n >= 2 && first <= o.offset && o.offset <= last
		if !isAll && !isRest {
			err = fmt.Errorf("the server answers %d with the range %s", code, quote(answer))
			return 0, permanentError{err}
		}
	}
	tag := resp.Header.Get("ETag")
	modified := resp.Header.Get("Last-Modified")
	differ := func(a, b string) bool { return a != b && a != "" && b != "" }
	if code == http.StatusPartialContent && tag == "W/"+o.tag {
		tag = o.tag
	}
	resized := o.size != size && o.size >= 0 && size >= 0
	isSame := tag == o.tag && strings.HasPrefix(tag, `"`) // strong, so it decides
	if resized || differ(o.tag, tag) || !isSame && differ(o.modified, modified) {
		return 0, errChanged
	}
	o.tag = cmp.Or(o.tag, tag)
	o.modified = cmp.Or(o.modified, modified)
	o.size = max(o.size, size)
	o.surplus = o.offset - first
	return 0, nil
}

// retryTime returns how long a server wants no other request: by Retry-After
// or, without it, by the policies of RateLimit (draft-ietf-httpapi-ratelimit-
// headers) of which nothing remains: "policy";r=0;t=30, "another";r=5;t=60.
func retryTime(header http.Header) (wait time.Duration) {
	if after := header.Get("Retry-After"); after != "" {
		return parseRetryAfter(after)
	}
	for policy := range strings.SplitSeq(strings.Join(header.Values("RateLimit"), ","), ",") {
		remaining, seconds := "", ""
		for parameter := range strings.SplitSeq(policy, ";") {
			name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			switch name {
			case "r":
				remaining = value
			case "t":
				seconds = value
			}
		}
		if remaining == "0" {
			wait = max(wait, parseRetryAfter(seconds))
		}
	}
	return wait
}

// parseRetryAfter parses the header Retry-After, a number of seconds or a date.
// It returns 0 if the header is missing or makes no sense, and at most two
// minutes, because an error soon is better than a wait of an hour.
func parseRetryAfter(header string) time.Duration {
	seconds, _ := strconv.Atoi(header)
	if date, err := http.ParseTime(header); err == nil {
		seconds = int(time.Until(date).Seconds()) + 1
	}
	seconds = max(0, min(seconds, 120))
	return time.Duration(seconds) * time.Second
}

// What files become.

// Decode decodes a file by its extension, as far as the standard library can:
//
//	png, jpg, jpeg, gif     image.Image, whatever format the bytes are in
//	json, jsn               what encoding/json makes of it; a number is a
//	                        json.Number, with all digits
//	jsonl                   []any: the JSON values, usually one in each line
//	txt, text, transcript   string
//	cls, cls2, class,
//	count, index, inx, id   int
//	npy                     a Tensor of float32, float64, bool, int8 to int64,
//	                        or uint8 to uint64; of float32 for float16
//	gz                      what is compressed, decoded by the rest of the
//	                        name: x.json.gz as x.json
//	anything else           []byte, as it is
//
// name may be a path or the field of a Record; its case does not matter.
// Nothing in the data is ever executed. Decode may be called concurrently.
//
// Data that is damaged, or not what the extension says, is an error, as far as
// the standard library notices: a GIF without its last bytes may decode. Data
// after a JSON value is an error, and so are NumPy arrays of other types or in
// Fortran order of more than one dimension, and files that decompress to more
// than 1 GiB, the default of TarOptions.MaxRecord; x.gz.gz is decompressed
// twice, to 1 GiB in all. Images must have pixels, and take at most 1 GiB: 2^27
// pixels or, in progressive JPEGs, 2^30/24. A small file can claim more.
//
// The image of a photograph is as the camera has stored it: its orientation, in
// EXIF, is not looked at; the recipe Example_exifOrientation turns it.
//
// The image of a GIF is its first frame. If the frame is smaller than the
// screen, its Bounds say where it is; Pillow returns the whole screen.
//
// PyTorch: the decode step of webdataset, and the decoding of the DataLoader's
// RFC.
func Decode(name string, data []byte) (any, error) {
	value, err := decode(strings.ToLower(name), data, defaultMaxRecord)
	if err != nil {
		return nil, fmt.Errorf("dataloader: Decode(%s): %w", quote(name), err)
	}
	return value, nil
}

// decode decodes a file whose name is in lower case. It decompresses at most
// limit bytes, both times of x.gz.gz together.
func decode(name string, data []byte, limit int64) (any, error) {
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "png", "jpg", "jpeg", "gif":
		return decodeImage(data)
	case "json", "jsn":
		values, err := decodeJSON(data)
		if err != nil {
			return nil, err
		}
		if len(values) != 1 {
			return nil, fmt.Errorf("there are %d JSON values, must be one; %s", len(values),
				begins(data))
		}
		return values[0], nil
	case "jsonl":
		return decodeJSON(data)
	case "txt", "text", "transcript":
		return string(data), nil
	case "cls", "cls2", "class", "count", "index", "inx", "id":
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(string(data), mark)))
		if err == nil {
			return n, nil
		}
		// err itself names all of the data.
		return nil, fmt.Errorf("it must be an integer, is %s: %w", quote(data), errors.Unwrap(err))
	case "npy":
		return decodeNumpy(data)
	case "gz":
		data, err := gunzip(data, limit)
		if err != nil {
			return nil, err
		}
		// What is left of the name has no ".gz"; a name may be just "gz".
		return decode(name[:max(0, len(name)-3)], data, limit-int64(len(data)))
	}
	return data, nil
}

// decodeImage decodes an image, unless its header claims more memory than a
// file may take, at 8 bytes a pixel. A progressive JPEG takes 4 bytes more for
// each of up to four components.
func decodeImage(data []byte) (any, error) {
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	damaged := func(err error) error {
		return fmt.Errorf("the image is damaged or truncated: %s: %w", begins(data), err)
	}
	if err == image.ErrFormat {
		return nil, fmt.Errorf("it must be a PNG, a JPEG, a GIF or an image whose decoder is "+
			"imported, and %s: %w", begins(data), err)
	}
	if err != nil {
		return nil, damaged(err)
	}
	perPixel := int64(8)
	if format == "jpeg" && isProgressive(data) {
		perPixel += 4 * 4
	}
	most := defaultMaxRecord / perPixel
	if pixels := int64(config.Width) * int64(config.Height); pixels < 1 || pixels > most {
		return nil, fmt.Errorf("the image has %d × %d pixels, must have 1 to %d",
			config.Width, config.Height, most)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, damaged(err)
	}
	return img, nil
}

// isProgressive reports whether the frame of a JPEG is progressive. It walks
// from marker to marker as image/jpeg does, and not only searches, because a
// comment or a color profile may contain the bytes of any marker. Superfluous
// bytes are skipped, and so are 0xff 0x00 and the restarts, 0xd0 to 0xd7, which
// have no length.
func isProgressive(data []byte) bool {
	for i := 2; i+4 <= len(data); {
		marker := data[i+1]
		switch {
		case data[i] != 0xff || marker == 0 || marker == 0xff || marker&0xf8 == 0xd0:
			i++
		case marker <= 0xc2: // of a frame; image/jpeg refuses lower ones
			return marker == 0xc2
		default:
			i += 2 + int(binary.BigEndian.Uint16(data[i+2:]))
		}
	}
	return false
}

// mark is a byte order mark, which some editors write before a text.
const mark = "\ufeff"

// decodeJSON decodes JSON values, one after the other. It skips a byte order
// mark. encoding/json would replace what is not UTF-8, and say nothing.
func decodeJSON(data []byte) (values []any, err error) {
	data = bytes.TrimPrefix(data, []byte(mark))
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return nil, fmt.Errorf("byte %d of the JSON text, %#x, is not UTF-8", i, data[i])
		}
		i += n
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	for {
		var value any
		err = decoder.Decode(&value)
		if err == io.EOF {
			return values, nil
		}
		if err != nil {
			return nil, fmt.Errorf("JSON value %d: %w; %s", len(values)+1, err, begins(data))
		}
		values = append(values, value)
	}
}

// gunzip decompresses data to at most limit bytes. It reads the data twice: the
// first pass counts the bytes, so that the second writes them into memory of
// the right size. io.ReadAll would take 2½ times as much memory before it
// refuses. The size at the end of a gzip file is not enough: it counts only the
// last member, and in a damaged file it may be any number.
func gunzip(data []byte, limit int64) ([]byte, error) {
	file := bytes.NewReader(data)
	buffer := bufio.NewReaderSize(file, tarBlock)
	r, err := newGunzipper(buffer)
	if err != nil {
		return nil, fmt.Errorf("it must be a gzip file, and %s: %w", begins(data), err)
	}
	size, err := io.CopyN(io.Discard, r, limit+1)
	if err == nil {
		err = fmt.Errorf("it decompresses to more than %d bytes", limit)
	}
	if err != io.EOF {
		return nil, fmt.Errorf("of the gzip file of %d bytes, after %d decompressed ones: %w",
			len(data), size, err)
	}
	content := make([]byte, size)
	file.Reset(data)
	buffer.Reset(file) // where r finds the first member as if it were the next
	_, err = io.ReadFull(r, content)
	return content, err
}

// decodeNumpy decodes an array in NumPy's npy format: a magic string, a
// version, the length of the header in 2 bytes, or in 4 since version 2, the
// header in the syntax of Python, and the elements. It takes memory only for
// elements that are there.
func decodeNumpy(data []byte) (any, error) {
	if len(data) < 12 || string(data[:6]) != "\x93NUMPY" || data[6] < 1 || data[6] > 3 {
		return nil, fmt.Errorf("it must be an npy file of version 1 to 3, and %s", begins(data))
	}
	length := uint(binary.LittleEndian.Uint16(data[8:]))
	rest := data[10:]
	if data[6] > 1 {
		length = uint(binary.LittleEndian.Uint32(data[8:]))
		rest = data[12:]
	}
	if length > uint(len(rest)) {
		return nil, fmt.Errorf("it is truncated: the header has %d bytes, and %d are there",
			length, len(rest))
	}
	if length > 1<<16 {
		return nil, fmt.Errorf("the header has %d bytes, at most 65,536 are read", length)
	}
	header, values := rest[:length], rest[length:]
	kind, order, shape, err := parseNumpyHeader(header)
	if err != nil {
		return nil, fmt.Errorf("the header is %s: %w", quote(bytes.TrimSpace(header)), err)
	}
	size := int(kind[1] - '0')
	if elements(shape) != len(values)/size || len(values)%size != 0 {
		return nil, fmt.Errorf("the shape %s of %s does not fit %d bytes of data",
			quote(fmt.Sprint(shape)), kind, len(values))
	}
	return numpyDecoders[kind](shape, order, values)
}

// A numpyHeader is the dictionary of Python in the header of an npy file.
type numpyHeader struct {
	Descr        any    `json:"descr"` // a string or, if the array has fields, a list
	FortranOrder *bool  `json:"fortran_order"`
	Shape        []*int `json:"shape"`
}

// parseNumpyHeader reads a header. The kind is two characters, such as f4.
func parseNumpyHeader(header []byte) (
	kind string, order binary.ByteOrder, shape []int, err error,
) {
	var h numpyHeader
	var wrong *json.UnmarshalTypeError
	err = decodeStrictly(pythonToJSON(header), &h)
	kind, _ = h.Descr.(string)
	shape = make([]int, 0, len(h.Shape))
	for _, length := range h.Shape {
		if length != nil && *length >= 0 {
			shape = append(shape, *length)
		}
	}
	order = binary.LittleEndian
	switch {
	case strings.HasPrefix(kind, ">"):
		order = binary.BigEndian
	case !strings.HasPrefix(kind, "<"):
		order = binary.NativeEndian
	}
	if kind != "" && strings.ContainsRune("<>|=", rune(kind[0])) {
		kind = kind[1:]
	}
	switch {
	case errors.As(err, &wrong):
		part, _, _ := strings.Cut(wrong.Field, ".") // Go 1.27 says which element, too
		err = fmt.Errorf("%s must not be a %s", part, wrong.Value)
	case err != nil:
		err = fmt.Errorf("it must be a dictionary of Python: %w", err)
	case h.Shape == nil || len(shape) < len(h.Shape):
		err = errors.New("shape must be a tuple of lengths")
	case h.FortranOrder == nil:
		err = errors.New("fortran_order must be False or True")
	case *h.FortranOrder && len(h.Shape) > 1: // with one dimension both orders are the same
		err = errors.New("fortran_order must be False: save numpy.ascontiguousarray(x)")
	case kind == "V2":
		err = errors.New("descr is of 2 bytes without a type, as bfloat16 is saved: " +
			"see the recipe Example_bfloat16")
	case numpyDecoders[kind] == nil:
		err = fmt.Errorf("descr is %v, must be f2, f4, f8, b1, i1 to i8 or u1 to u8", h.Descr)
	}
	return kind, order, shape, err
}

// pythonToJSON makes JSON of the header, which has other quotes, parentheses
// and names, a comma behind the last element, and the L of Python 2 behind
// integers.
func pythonToJSON(header []byte) []byte {
	text := make([]byte, 0, len(header))
	for i, c := range header {
		switch {
		case c == '\'':
			c = '"'
		case c == 'u' && bytes.HasPrefix(header[i:], []byte("u'")): // also of Python 2
			continue
		case c == '(':
			c = '['
		case c == ')' || c == ']' || c == '}':
			text = bytes.TrimSuffix(bytes.TrimRight(text, " \t\n"), []byte(","))
			if c == ')' {
				c = ']'
			}
		case c == 'L' && i > 0 && '0' <= header[i-1] && header[i-1] <= '9':
			continue
		case bytes.HasPrefix(header[i:], []byte("True")) ||
			bytes.HasPrefix(header[i:], []byte("False")):
			c |= 0x20 // in lower case
		}
		text = append(text, c)
	}
	return text
}

// numpyDecoders has the functions that decode elements, by their type in npy
// files.
var numpyDecoders = map[string]func([]int, binary.ByteOrder, []byte) (any, error){
	"f2": decodeHalf,
	"f4": decodeTensor[float32],
	"f8": decodeTensor[float64],
	"b1": decodeTensor[bool],
	"i1": decodeTensor[int8],
	"i2": decodeTensor[int16],
	"i4": decodeTensor[int32],
	"i8": decodeTensor[int64],
	"u1": decodeTensor[uint8],
	"u2": decodeTensor[uint16],
	"u4": decodeTensor[uint32],
	"u8": decodeTensor[uint64],
}

// decodeTensor makes a tensor of a shape from as many elements.
func decodeTensor[E any](shape []int, order binary.ByteOrder, data []byte) (any, error) {
	t := Tensor[E]{make([]E, elements(shape)), shape}
	_, err := binary.Decode(data, order, t.Data)
	return t, err
}

// decodeHalf makes a tensor of float32 from float16, which Go does not have: a
// sign, five bits of an exponent, and ten of a fraction.
func decodeHalf(shape []int, order binary.ByteOrder, data []byte) (any, error) {
	t := Tensor[float32]{make([]float32, elements(shape)), shape}
	for i := range t.Data {
		half := uint32(order.Uint16(data[2*i:]))
		// Exponent and fraction, moved to where a float32 has them, are a
		// number that is 2^112 times too small, also if it is subnormal.
		bits := half & 0x7fff << 13
		value := math.Float32frombits(bits) * 0x1p112
		if value >= 1<<16 { // infinity or NaN
			value = math.Float32frombits(bits | 0xff<<23)
		}
		if half>>15 == 1 {
			value = -value
		}
		t.Data[i] = value
	}
	return t, nil
}

// ImageTensor makes a tensor of the shape [3 H W] from an image: a plane of
// red, one of green and one of blue, with values from 0 to 1. The planes of a
// gray image are equal. Like append, ImageTensor builds the tensor in the
// memory of dst if there is enough; dst may be the zero Tensor. A photograph
// must be turned before, see Decode.
//
// Alpha is dropped, and colors are not premultiplied: half transparent red is
// as red as opaque red. Where alpha is 0, only an image.NRGBA has a color. All
// others are black there. Opaque 16-bit images keep their precision. YCbCr
// images, which JPEGs are, get the 8-bit colors of color.YCbCrToRGB. An
// image.RGBA with a color greater than its alpha, as if alpha had been left
// out, is not valid; such a value becomes 1.
//
// The pixels of an image.YCbCr, NRGBA or Gray, and of an opaque image.RGBA, are
// read directly. All other images of the image package are read with RGBA64At,
// which does not allocate. An image without RGBA64At is read with At, which may
// allocate for each pixel.
//
// PyTorch: torchvision's ToTensor, after Pillow's convert("RGB").
func ImageTensor(dst Tensor[float32], img image.Image) Tensor[float32] {
	if img, ok := img.(*image.RGBA); ok && img.Opaque() {
		return ImageTensor(dst, (*image.NRGBA)(img)) // which differs only where alpha is not 255
	}
	b := img.Bounds()
	w, h := b.Dx(), b.Dy()
	dst.Shape = append(dst.Shape[:0], 3, h, w)
	dst.Data = slices.Grow(dst.Data[:0], 3*h*w)[:3*h*w]
	if w == 0 {
		return dst
	}
	for y := range h {
		red := dst.Data[y*w:][:w]
		green := dst.Data[(h+y)*w:][:w]
		blue := dst.Data[(2*h+y)*w:][:w]
		imageRow(red, green, blue, img, b.Min.X, b.Min.Y+y)
	}
	return dst
}

// levels[v] is v/255, because to look a quotient up takes less time than to
// divide. The table is never changed.
var levels = func() (quotients [256]float32) {
	for v := range quotients {
		quotients[v] = float32(v) / 255
	}
	return quotients
}()

// imageRow fills a row of each plane with the pixels of an image from (left, y)
// on.
//
// To find the chroma of a column, COffset divides the column by 1, 2 or 4. A
// shift takes less time than this call, but it rounds down, while the division
// rounds towards 0. So only a row that begins left of 0 calls COffset for each
// column.
func imageRow(red, green, blue []float32, img image.Image, left, y int) {
	green, blue = green[:len(red)], blue[:len(red)] // so that indices into them are not checked
	switch img := img.(type) {
	case *image.YCbCr:
		luma, start := img.Y[img.YOffset(left, y):][:len(red)], img.COffset(0, y)
		shift := uint(2 - (img.COffset(4, y)-start)/2) // 4 columns have 4, 2 or 1 samples of chroma
		for x := range red {
			c := start + (left+x)>>shift
			if left < 0 {
				c = img.COffset(left+x, y)
			}
			r, g, b := color.YCbCrToRGB(luma[x], img.Cb[c], img.Cr[c])
			red[x], green[x], blue[x] = levels[r], levels[g], levels[b]
		}
	case *image.NRGBA:
		pix := img.Pix[img.PixOffset(left, y):]
		for x := range red {
			red[x] = levels[pix[4*x]]
			green[x] = levels[pix[4*x+1]]
			blue[x] = levels[pix[4*x+2]]
		}
	case *image.Gray:
		for x, v := range img.Pix[img.PixOffset(left, y):][:len(red)] {
			red[x], green[x], blue[x] = levels[v], levels[v], levels[v]
		}
	default:
		direct, ok := img.(image.RGBA64Image)
		for x := range red {
			var r, g, b, a uint32 // premultiplied: no value is greater than alpha
			if ok {
				r, g, b, a = direct.RGBA64At(left+x, y).RGBA()
			} else {
				r, g, b, a = img.At(left+x, y).RGBA()
			}
			alpha := float32(max(a, 1))
			red[x] = min(1, float32(r)/alpha)
			green[x] = min(1, float32(g)/alpha)
			blue[x] = min(1, float32(b)/alpha)
		}
	}
}
