package values

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Set to a file of tests/support/value_cases.py: cases with what Python says of them.
const referenceVariable = "STATEHOUSE_VALUE_CASES"

// Each with what Python makes of it, in hex; nothing if that is for Python to say.
var vectors = []struct {
	form     Form
	data     string
	expected string
}{
	{Raw, "", "2a00"},
	{Raw, "\x00\xff", "2a0200ff"},
	{Text, "", "1200"},
	{Text, "Zoë\x00", "12055a6fc3ab00"},
	{Text, "\xff", ""},
	{Text, "\xed\xa0\x80", ""}, // half of a surrogate pair
	{Text, "\xc0\x80", ""},     // more bytes than needed
	{Text, "\xf4\x90\x80\x80", ""},
	{Long, "\x00\x00\x00\x00\x00\x00\x00\x00", "1800"},
	{Long, "\x00\x00\x00\x00\x00\x00\x01\x00", "188002"},
	{Long, "\xff\xff\xff\xff\xff\xff\xff\xff", "18ffffffffffffffffff01"},
	{Long, "\x00\x00\x00\x05", ""},
	{Long, "\x00\x00\x00\x00\x00\x00\x00\x00\x00", ""},
	{Double, "\x00\x00\x00\x00\x00\x00\x00\x00", "210000000000000000"},
	{Double, "\x80\x00\x00\x00\x00\x00\x00\x00", "210000000000000080"},
	{Double, "\x3f\xf8\x00\x00\x00\x00\x00\x01", "21010000000000f83f"},
	{Double, "\x7f\xf0\x00\x00\x00\x00\x00\x01", "21010000000000f07f"}, // a NaN that signals
	{Double, "\x3f\xf8", ""},
	{JSON, "null", "0a020800"},
	{JSON, "true", "0a022001"},
	{JSON, "false", "0a022000"},
	{JSON, "0", "0a09110000000000000000"},
	{JSON, "-0", "0a09110000000000000000"},
	{JSON, "-0.0", "0a09110000000000000080"},
	{JSON, "1.5", "0a0911000000000000f83f"},
	{JSON, "1e-400", "0a09110000000000000000"},
	{JSON, "9007199254740992", "0a09110000000000004043"},
	{JSON, "-9007199254740992", "0a091100000000000040c3"},
	{JSON, "9007199254740993", "0a121a1039303037313939323534373430393933"},
	{JSON, "-10000000000000000", "0a141a122d3130303030303030303030303030303030"},
	{JSON, `""`, "0a021a00"},
	{JSON, `"\u005a\/\ud83d\ude00"`, "0a081a065a2ff09f9880"},
	{JSON, " \t\r\n{ } ", "0a022a00"},
	{JSON, "[]", "0a023200"},
	{JSON, `[null,[]]`, "0a0a32080a0208000a023200"},
	{JSON, `{"b":1,"a":"x"}`, "0a1c2a1a0a0e0a0162120911000000000000f03f0a080a016112031a0178"},
	{JSON, `{"a":1,"a":2}`, ""},
	{JSON, `{"a":1,"\u0061":2}`, ""},
	{JSON, "1e400", ""},
	{JSON, "NaN", ""},
	{JSON, "-Infinity", ""},
	{JSON, `"\ud800"`, ""},
	{JSON, `"\ud800\u0061"`, ""},
	{JSON, `"\b\f\n\r\t\"\\"`, "0a091a07080c0a0d09225c"},
	{JSON, "\"\x7f\"", "0a031a017f"},
	{JSON, "\"\x1f\"", ""},
	{JSON, "\"\xff\"", ""},
	{JSON, "\f1", ""},
	{JSON, "1.", ""},
	{JSON, "1e", ""},
	{JSON, "-", ""},
	{JSON, "1" + strings.Repeat("0", longestNumber), ""},
	{JSON, "\ufeff{}", ""},
	{JSON, "[1,]", ""},
	{JSON, "01", ""},
	{JSON, "{} {}", ""},
	{JSON, "", ""},
	{JSONText, ` {"a": 1.0}`, "320b207b2261223a20312e307d"},
	{JSONText, `{"a":1,"a":2}`, ""},
	{JSONText, `{`, ""},
	{0, "1", ""},
	{JSONText + 1, "1", ""},
}

func TestValuesAreShownAsPythonDoesIt(t *testing.T) {
	for _, each := range vectors {
		to, answered := Append([]byte("before"), each.form, []byte(each.data))
		if found := hex.EncodeToString(to[len("before"):]); found != each.expected || answered != (each.expected != "") {
			t.Errorf("form %d, %q: %s, %t instead of %s", each.form, each.data, found, answered, each.expected)
		}
		if !bytes.HasPrefix(to, []byte("before")) {
			t.Errorf("form %d, %q: what was there is now %q", each.form, each.data, to)
		}
	}
}

// documentIn returns the message of a value that is a JSON document.
func documentIn(t *testing.T, value []byte) *structpb.Value {
	t.Helper()
	if len(value) == 0 || value[0] != jsonTag {
		t.Fatalf("%x is no document", value)
	}
	content, size := protowire.ConsumeBytes(value[1:])
	if size != len(value)-1 {
		t.Fatalf("%x: it ends elsewhere than its document", value)
	}
	found := new(structpb.Value)
	if err := proto.Unmarshal(content, found); err != nil {
		t.Fatal(err)
	}
	return found
}

// sorted returns a message in the one form that equal messages have, to the sign of a zero.
func sorted(t *testing.T, message proto.Message) []byte {
	t.Helper()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// made returns something that JSON and messages have alike.
func made(rng *rand.Rand, deep int) any {
	kinds := 5
	if deep > 0 {
		kinds = 7
	}
	switch rng.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return rng.IntN(2) == 0
	case 2:
		return float64(rng.Int64N(1 << 53))
	case 3:
		return rng.NormFloat64()
	case 4:
		return madeText(rng)
	case 5:
		items := make([]any, rng.IntN(6))
		for i := range items {
			items[i] = made(rng, deep-1)
		}
		return items
	default:
		most := 5
		if rng.IntN(20) == 0 {
			most = 3 * fewNames
		}
		fields := map[string]any{}
		for range rng.IntN(most) {
			fields[madeText(rng)] = made(rng, deep-2)
		}
		return fields
	}
}

// madeText returns a text, often of a length at which lengths take a byte more.
func madeText(rng *rand.Rand) string {
	chars := []rune("abc\"\\<\u2028\x00\x1f\x7fäß€😀\ufffd")
	if rng.IntN(8) == 0 {
		return strings.Repeat("x", (1<<(7*(1+rng.IntN(2))))-12+rng.IntN(14))
	}
	text := make([]rune, rng.IntN(8))
	for i := range text {
		text[i] = chars[rng.IntN(len(chars))]
	}
	return string(text)
}

func TestDocumentsAreTheMessagesThatTheyWereMadeOf(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		document := made(rng, 5)
		data, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		expected, err := structpb.NewValue(document)
		if err != nil {
			t.Fatal(err)
		}
		value, answered := Append(nil, JSON, data)
		if !answered {
			t.Fatalf("%s is left to Python", data)
		}
		if found := documentIn(t, value); !bytes.Equal(sorted(t, found), sorted(t, expected)) {
			t.Fatalf("%s: %v", data, found)
		}
	}
}

func TestANameTwiceIsFoundWhereverTheyAre(t *testing.T) {
	for _, count := range []int{2, fewNames, fewNames + 1, 100} {
		names := make([]string, count)
		for i := range names {
			names[i] = strings.Repeat("n", i)
		}
		for first := range count {
			for second := first + 1; second < count; second += 1 + count/10 {
				if hasNameTwice(fieldsOf(names)) {
					t.Fatalf("%d names that differ", count)
				}
				before := names[second]
				names[second] = names[first]
				if !hasNameTwice(fieldsOf(names)) {
					t.Fatalf("%d names, %d and %d alike", count, first, second)
				}
				names[second] = before
			}
		}
	}
}

// fieldsOf returns the fields of a Struct with these names.
func fieldsOf(names []string) []byte {
	var fields []byte
	for _, name := range names {
		fields = delimited(fields, fieldTag, delimited(delimited(nil, nameTag, []byte(name)), valueTag, []byte{nullTag, 0}))
	}
	return fields
}

func TestDocumentsAreShownToTheDepthThatReadersTake(t *testing.T) {
	for _, each := range []struct {
		opening, inner, closing string
		deep                    int
	}{{`{"a":`, "1", "}", 30}, {"[", "1", "]", 45}} {
		for _, form := range []Form{JSON, JSONText} {
			for deep := each.deep; deep <= each.deep+1; deep++ {
				data := strings.Repeat(each.opening, deep) + each.inner + strings.Repeat(each.closing, deep)
				if _, answered := Append(nil, form, []byte(data)); answered != (deep == each.deep) {
					t.Errorf("form %d, %d times %s: %t", form, deep, each.opening, answered)
				}
			}
		}
	}
}

// TestAgainstReference compares with a file of cases, each with Python's message or its refusal.
func TestAgainstReference(t *testing.T) {
	path := os.Getenv(referenceVariable)
	if path == "" {
		t.Skip("tests/integration/proxy/test_values.py runs this with a file of cases")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cases, answers [JSONText + 1]int
	for in := bufio.NewReader(file); ; {
		reference, err := nextReference(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		cases[reference.form]++
		value, answered := Append(nil, reference.form, reference.data)
		if answered {
			answers[reference.form]++
			reference.compare(t, value)
		} else if reference.ordinary {
			t.Errorf("form %d: left to Python: %q", reference.form, reference.data)
		}
	}
	for form := Raw; form <= JSONText; form++ {
		t.Logf("form %d: %d of %d answered", form, answers[form], cases[form])
		if answers[form] == 0 {
			t.Errorf("form %d: nothing is answered", form)
		}
	}
}

// reference is a stored value and what Python makes of it.
type reference struct {
	form           Form
	ordinary       bool // Python need not be asked
	shown          bool // otherwise Python refuses it
	data, expected []byte
}

// nextReference reads a case: form, ordinary and shown in a byte each, the two lengths in four, and the two.
func nextReference(in io.Reader) (*reference, error) {
	var head struct {
		Form            uint8
		Ordinary, Shown bool
		Data, Expected  uint32
	}
	if err := binary.Read(in, binary.BigEndian, &head); err != nil {
		return nil, err
	}
	both := make([]byte, head.Data+head.Expected)
	if _, err := io.ReadFull(in, both); err != nil {
		return nil, errors.New("the file ends within a case")
	}
	return &reference{Form(head.Form), head.Ordinary, head.Shown, both[:head.Data], both[head.Data:]}, nil
}

// compare compares what we answer.
func (r *reference) compare(t *testing.T, value []byte) {
	t.Helper()
	switch {
	case !r.shown:
		t.Errorf("form %d: Python refuses %q, which is %x here", r.form, r.data, value)
	case r.form == JSON:
		if !bytes.Equal(sorted(t, documentIn(t, value)), sorted(t, documentIn(t, r.expected))) {
			t.Errorf("%q is %x, Python's %x", r.data, value, r.expected)
		}
	case !bytes.Equal(value, r.expected):
		t.Errorf("form %d: %q is %x, Python's %x", r.form, r.data, value, r.expected)
	}
}

func FuzzAppend(f *testing.F) {
	for _, each := range vectors {
		f.Add(int(each.form), []byte(each.data))
	}
	f.Add(int(JSON), []byte(`{"a":[1,-2.5e3,"\u00e9\ud83d\ude00\n"],"b":{"c":null,"d":true}}`))
	f.Add(int(JSON), []byte(`["`+strings.Repeat("x", 1<<7)+`"]`))
	f.Fuzz(func(t *testing.T, form int, data []byte) {
		value, answered := Append(nil, Form(form), data)
		if !answered {
			if len(value) > 0 {
				t.Fatalf("%x, and no answer", value)
			}
			return
		}
		if _, _, size := protowire.ConsumeField(value); size != len(value) {
			t.Fatalf("%x is no field, or more", value)
		}
		if Form(form) == JSON || Form(form) == JSONText {
			if !json.Valid(data) || !utf8.Valid(data) {
				t.Fatalf("%q is no document", data)
			}
			document, _ := Append(nil, JSON, data)
			documentIn(t, document)
			if text, _ := Append(nil, JSONText, data); !bytes.HasSuffix(text, data) {
				t.Fatalf("%q has a message and no text", data)
			}
		}
	})
}

// About a hundred bytes, as many stores have them.
const small = `{"player":"p-00042","score":9100,"rank":3,"team":{"name":"Zoë's","wins":[1,0,1]},"ratio":0.875}`

func BenchmarkText(b *testing.B)     { benchmark(b, Text, []byte("twenty bytes of text")) }
func BenchmarkLong(b *testing.B)     { benchmark(b, Long, []byte("\x00\x00\x00\x00\x00\x01\x00\x00")) }
func BenchmarkJSON(b *testing.B)     { benchmark(b, JSON, []byte(small)) }
func BenchmarkJSONText(b *testing.B) { benchmark(b, JSONText, []byte(small)) }

func benchmark(b *testing.B, form Form, data []byte) {
	b.Helper()
	b.ReportAllocs()
	var to []byte
	for b.Loop() {
		var answered bool
		if to, answered = Append(to[:0], form, data); !answered {
			b.Fatal("left to Python")
		}
	}
}
