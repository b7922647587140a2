package placement

import "testing"

// As in statehouse/contract/partitioning.py, made by Kafka's Java client.
var vectors = []struct {
	key  string
	hash int32
}{
	{"", 275646681},
	{"\x00", 375494588},
	{"\xff", -311467685},
	{"\x80\x00", -747627646},
	{"\x80\x80\x80", -1134684817},
	{"\xff\xff\x7f", -229777944},
	{"\x80\x00\x00\x80", 120646186},
	{"\xff\xfe\xfd\xfc\xfb", 524068735},
	{"foobar", -790332482},
	{"Zoë", -1306457314},
	{"a-little-bit-longer-string", -1486304829},
}

func TestKeysAreHashedAsJavaDoesIt(t *testing.T) {
	for _, each := range vectors {
		if found := int32(Hash([]byte(each.key))); found != each.hash {
			t.Errorf("%x: %d instead of %d", each.key, found, each.hash)
		}
	}
}
