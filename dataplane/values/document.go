package values

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Tags of the fields of google.protobuf's Value, Struct and ListValue.
const (
	nullTag   = 0x08
	numberTag = 0x11
	stringTag = 0x1a
	boolTag   = 0x20
	objectTag = 0x2a
	listTag   = 0x32

	fieldTag = 0x0a
	nameTag  = 0x0a
	valueTag = 0x12

	itemTag = 0x0a
)

const (
	// As MESSAGES_DEEP in statehouse/serdes/json_documents.py: how deep messages may be, and how deep an object and a list
	// are.
	messagesDeep = 90
	objectDeep   = 3
	listDeep     = 2
	// Larger integers are shown as text.
	exactIntegersTo = 1 << 53
	exactDigits     = 16
	// Python can be set to refuse integers of more digits, and an exponent in fewer bytes is one that strconv takes whole.
	longestNumber = 640
	// As many names are compared in pairs; more are sorted.
	fewNames = 16
)

// document is a JSON document that is being read. Its methods return false where Python has to read it.
type document struct {
	rest []byte // what is still to be read
	to   []byte // gets the fields of google.protobuf.Value
}

// whole reads the document to its end.
func (d *document) whole() bool {
	if !utf8.Valid(d.rest) {
		return false
	}
	d.skipBlanks()
	if !d.value(messagesDeep) {
		return false
	}
	d.skipBlanks()
	return len(d.rest) == 0
}

// value reads a value. `room`: how deep its messages may be.
func (d *document) value(room int) bool {
	if room < 0 || len(d.rest) == 0 {
		return false
	}
	switch d.rest[0] {
	case '"':
		return d.text(stringTag)
	case '{':
		return d.object(room)
	case '[':
		return d.list(room)
	case 't':
		return d.word("true", boolTag, 1)
	case 'f':
		return d.word("false", boolTag, 0)
	case 'n':
		return d.word("null", nullTag, 0)
	default:
		return d.number()
	}
}

func (d *document) object(room int) bool {
	d.rest = d.rest[1:]
	fields := d.open(objectTag)
	d.skipBlanks()
	if d.next('}') {
		return true // its length, nothing, is written
	}
	for count := 1; ; count++ {
		field := d.open(fieldTag)
		if !d.text(nameTag) {
			return false
		}
		d.skipBlanks()
		if !d.next(':') {
			return false
		}
		d.skipBlanks()
		value := d.open(valueTag)
		if !d.value(room - objectDeep) {
			return false
		}
		d.close(value)
		d.close(field)
		d.skipBlanks()
		if d.next('}') {
			if count > 1 && hasNameTwice(d.to[fields:]) {
				return false
			}
			d.close(fields)
			return true
		}
		if !d.next(',') {
			return false
		}
		d.skipBlanks()
	}
}

func (d *document) list(room int) bool {
	d.rest = d.rest[1:]
	items := d.open(listTag)
	d.skipBlanks()
	if d.next(']') {
		return true // its length, nothing, is written
	}
	for {
		item := d.open(itemTag)
		if !d.value(room - listDeep) {
			return false
		}
		d.close(item)
		d.skipBlanks()
		if d.next(']') {
			d.close(items)
			return true
		}
		if !d.next(',') {
			return false
		}
		d.skipBlanks()
	}
}

func (d *document) word(word string, tag, shown byte) bool {
	if len(d.rest) < len(word) || string(d.rest[:len(word)]) != word {
		return false
	}
	d.rest = d.rest[len(word):]
	d.to = append(d.to, tag, shown)
	return true
}

// text reads a text in quotes, a value or a name, into a field.
func (d *document) text(tag byte) bool {
	if !d.next('"') {
		return false
	}
	content := d.open(tag)
	for {
		plain := 0
		for plain < len(d.rest) && isPlain[d.rest[plain]] {
			plain++
		}
		d.to = append(d.to, d.rest[:plain]...)
		d.rest = d.rest[plain:]
		if d.next('"') {
			d.close(content)
			return true
		}
		if !d.next('\\') || !d.escaped() {
			return false
		}
	}
}

// escaped reads what follows a backslash. Halves of characters that are no pair are refused.
func (d *document) escaped() bool {
	if len(d.rest) == 0 {
		return false
	}
	if char := escapes[d.rest[0]]; char != 0 {
		d.rest = d.rest[1:]
		d.to = append(d.to, char)
		return true
	}
	char, found := d.hexadecimal()
	if found && utf16.IsSurrogate(char) {
		if !d.next('\\') {
			return false
		}
		var low rune
		low, found = d.hexadecimal()
		char = utf16.DecodeRune(char, low)
		found = found && char != utf8.RuneError
	}
	d.to = utf8.AppendRune(d.to, char)
	return found
}

// hexadecimal reads a character's number: u and four digits.
func (d *document) hexadecimal() (rune, bool) {
	const size = 1 + 4
	if len(d.rest) < size || d.rest[0] != 'u' {
		return 0, false
	}
	number := rune(0)
	for _, digit := range d.rest[1:size] {
		switch {
		case '0' <= digit && digit <= '9':
			digit -= '0'
		case 'a' <= digit && digit <= 'f':
			digit -= 'a' - 10
		case 'A' <= digit && digit <= 'F':
			digit -= 'A' - 10
		default:
			return 0, false
		}
		number = number<<4 | rune(digit)
	}
	d.rest = d.rest[size:]
	return number, true
}

func (d *document) number() bool {
	sign := 0
	if d.rest[0] == '-' {
		sign = 1
	}
	whole := afterDigits(d.rest, sign)
	if whole == sign || whole > sign+1 && d.rest[sign] == '0' {
		return false
	}
	end := whole
	if end < len(d.rest) && d.rest[end] == '.' {
		end = afterDigits(d.rest, whole+1)
		if end == whole+1 {
			return false
		}
	}
	if end < len(d.rest) && d.rest[end]|0x20 == 'e' {
		digits := end + 1
		if digits < len(d.rest) && (d.rest[digits] == '+' || d.rest[digits] == '-') {
			digits++
		}
		end = afterDigits(d.rest, digits) // strconv refuses one without digits
	}
	if end > longestNumber {
		return false
	}
	text := d.rest[:end]
	d.rest = d.rest[end:]
	if end == whole {
		d.integer(text, text[sign:])
		return true
	}
	number, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return false
	}
	d.float(number)
	return true
}

// integer appends an integer; -0 is 0.
func (d *document) integer(text, digits []byte) {
	number := int64(0)
	if len(digits) <= exactDigits {
		for _, digit := range digits {
			number = number*10 + int64(digit-'0')
		}
	}
	if len(digits) > exactDigits || number > exactIntegersTo {
		d.to = delimited(d.to, stringTag, text)
		return
	}
	if len(text) > len(digits) {
		number = -number
	}
	d.float(float64(number))
}

func (d *document) float(number float64) {
	d.to = protowire.AppendFixed64(append(d.to, numberTag), math.Float64bits(number))
}

func (d *document) skipBlanks() {
	for len(d.rest) > 0 {
		switch d.rest[0] {
		case ' ', '\t', '\n', '\r':
			d.rest = d.rest[1:]
		default:
			return
		}
	}
}

// next reads a character if it is the next one.
func (d *document) next(char byte) bool {
	if len(d.rest) == 0 || d.rest[0] != char {
		return false
	}
	d.rest = d.rest[1:]
	return true
}

func (d *document) open(tag byte) int {
	to, content := opened(d.to, tag)
	d.to = to
	return content
}

func (d *document) close(content int) { d.to = closed(d.to, content) }

// hasNameTwice says so of the fields of a Struct.
func hasNameTwice(fields []byte) bool {
	var few [fewNames][]byte
	names := few[:0]
	for len(fields) > 0 {
		var field []byte
		field, fields = firstField(fields)
		name, _ := firstField(field)
		names = append(names, name)
	}
	if len(names) <= fewNames {
		for i, name := range names {
			for _, other := range names[:i] {
				if string(name) == string(other) {
					return true
				}
			}
		}
		return false
	}
	slices.SortFunc(names, bytes.Compare)
	for i := range names[1:] {
		if string(names[i]) == string(names[i+1]) {
			return true
		}
	}
	return false
}

// firstField returns the content of a message's first field, and what follows the field.
func firstField(message []byte) ([]byte, []byte) {
	size, digits := binary.Uvarint(message[1:])
	begins := 1 + digits
	return message[begins : begins+int(size)], message[begins+int(size):]
}

// afterDigits returns where the digits that begin there end.
func afterDigits(text []byte, at int) int {
	for at < len(text) && '0' <= text[at] && text[at] <= '9' {
		at++
	}
	return at
}

// What stands for itself in a text, and what a character behind a backslash stands for.
var (
	isPlain [256]bool
	escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}
)

func init() {
	for char := range isPlain {
		isPlain[char] = char >= ' ' && char != '"' && char != '\\'
	}
}
