// Prints a stream to the end of what is committed, one JSON line a record: go run ./read 127.0.0.1 9292 orders
// Written from docs/protocol.md alone: frames, a cursor, a checksum and a range for every batch, Arrow bodies.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"os"
	"regexp"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"
)

// The columns are those of the page, but for binary ones: they are read as text, which has the same layout, to print as text.
var number, text = arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String
var header = arrow.StructOf(arrow.Field{Name: "key", Type: text}, arrow.Field{Name: "value", Type: text, Nullable: true})
var schema = arrow.NewSchema([]arrow.Field{
	{Name: "offset", Type: number}, {Name: "timestamp", Type: arrow.FixedWidthTypes.Timestamp_us}, {Name: "subject", Type: text},
	{Name: "key", Type: text, Nullable: true}, {Name: "headers", Type: arrow.ListOf(header), Nullable: true},
	{Name: "txid", Type: number, Nullable: true}, {Name: "value", Type: text, Nullable: true}}, nil)
var castagnoli, batchHeader = crc32.MakeTable(crc32.Castagnoli), regexp.MustCompile("[0-9a-f]{80}")

type response struct {
	Offset        int64
	HighWatermark int64 `json:"high_watermark"`
	Error         any
}

func require(ok bool, otherwise ...any) {
	if !ok {
		log.Fatalln(otherwise...)
	}
}

func must[T any](value T, err error) T { require(err == nil, err); return value }

// Sends requests and takes the next response: they come in the order of the requests, as a cursor's do.
func ask(node net.Conn, requests ...string) (answer response, body []byte) {
	for _, request := range requests {
		lengths := append(binary.LittleEndian.AppendUint32(nil, uint32(len(request))), make([]byte, 8)...)
		must(node.Write(append(lengths, request...)))
	}
	var lengths, header, content bytes.Buffer
	must(io.CopyN(&lengths, node, 12))
	must(io.CopyN(&header, node, int64(binary.LittleEndian.Uint32(lengths.Bytes()))))
	must(io.CopyN(&content, node, int64(binary.LittleEndian.Uint64(lengths.Bytes()[4:]))))
	must(0, json.Unmarshal(header.Bytes(), &answer))
	require(answer.Error == nil, header.String())
	return answer, content.Bytes()
}

// Takes a message off a body and checks it; its batch begins at base, the following one at next.
func takeMessage(body []byte) (message []byte, base, next int64) {
	defer func() { require(recover() == nil, "a batch is damaged or missing: there is no checksum") }()
	metadata := body[8 : 8+binary.LittleEndian.Uint32(body[4:])]
	table := flatbuffers.Table{Bytes: metadata, Pos: flatbuffers.GetUOffsetT(metadata)}
	message = body[:8+len(metadata)+int(table.GetInt64Slot(10, 0))] // field 3 of table Message: the length of its body
	digits := string(batchHeader.Find(metadata))
	zeroed := bytes.Replace(message, []byte(digits), []byte(digits[:72]+"00000000"), 1)
	sum := fmt.Sprintf("%08x", crc32.Checksum(zeroed, castagnoli))
	require(sum == digits[72:], "a batch is damaged: its checksum should be", digits[72:], "and is", sum)
	must(fmt.Sscanf(digits[8:40], "%16x%16x", &base, &next))
	return message, base, next
}

func main() {
	var empty bytes.Buffer // an Arrow stream that is a schema message and an end marker of 8 bytes
	must(0, ipc.NewWriter(&empty, ipc.WithSchema(schema)).Close())
	node, stream := must(net.Dial("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))), os.Args[3]
	ask(node, `{"op":"hello","id":0,"protocol":1}`)
	place, _ := ask(node, fmt.Sprintf(`{"op":"list_offsets","id":1,"stream":%q,"at":"earliest"}`, stream))
	from, end, position := place.Offset, place.HighWatermark, int64(-1)
	fetch := fmt.Sprintf(`{"op":"fetch","id":%%d,"stream":%q,"cursor":0,"offset":%%v,"end":%d}`, stream, end)
	requests := []string{fmt.Sprintf(fetch, 2, from), fmt.Sprintf(fetch, 3, `"next"`), fmt.Sprintf(fetch, 4, `"next"`)}
	for id := 5; max(from, position) < end; id, requests = id+1, []string{fmt.Sprintf(fetch, id, `"next"`)} {
		_, body := ask(node, requests...)
		for more := true; more; more = len(body) > 0 {
			message, base, next := takeMessage(body)
			require(base == position || position < 0 && base <= from, "a batch at", base, "and not at", max(from, position))
			source := io.MultiReader(bytes.NewReader(empty.Bytes()[:empty.Len()-8]), bytes.NewReader(message))
			batch := must(must(ipc.NewReader(source)).Read())
			offsets := batch.Column(0).(*array.Int64).Int64Values()
			first, _ := slices.BinarySearch(offsets, from)
			last, _ := slices.BinarySearch(offsets, end)
			must(0, array.RecordToJSON(batch.NewSlice(int64(first), int64(last)), os.Stdout))
			position, body = next, body[len(message):]
		}
	}
}
