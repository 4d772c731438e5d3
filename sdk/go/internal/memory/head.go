package memory

import (
	"encoding/binary"
	"strings"
)

// MaxFields is the maximum of fields of a head.
const MaxFields = 256

// AppendField appends a field to a head. The caller keeps the head within MaxHead and MaxFields.
func AppendField(head []byte, name, value string) ([]byte, error) {
	if len(name) > 0xffff || !isFieldName(name) {
		return head, MemoryError("name")
	}
	if len(value) > 0xffff || strings.ContainsAny(value, "\x00\r\n") {
		return head, MemoryError("value")
	}
	head = binary.LittleEndian.AppendUint16(head, uint16(len(name)))
	head = binary.LittleEndian.AppendUint16(head, uint16(len(value)))
	return append(append(head, name...), value...), nil
}

// EachField calls visit for every field of a private copy of a head, and returns the first error.
func EachField(head []byte, visit func(name, value []byte)) error {
	if len(head) > MaxHead {
		return MemoryError("too_many")
	}
	for count := 0; len(head) > 0; count++ {
		if count == MaxFields {
			return MemoryError("too_many")
		}
		if len(head) < 4 {
			return MemoryError("truncated")
		}
		name, value := int(binary.LittleEndian.Uint16(head)), int(binary.LittleEndian.Uint16(head[2:]))
		head = head[4:]
		if len(head) < name+value {
			return MemoryError("truncated")
		}
		if !isFieldName(head[:name]) {
			return MemoryError("name")
		}
		if !isFieldValue(head[name : name+value]) {
			return MemoryError("value")
		}
		visit(head[:name], head[name:name+value])
		head = head[name+value:]
	}
	return nil
}

// isFieldName reports whether a name is printable ASCII without blanks and capitals.
func isFieldName[T string | []byte](name T) bool {
	for k := range len(name) {
		if c := name[k]; c <= ' ' || c > '~' || (c >= 'A' && c <= 'Z') {
			return false
		}
	}
	return len(name) > 0
}

func isFieldValue(value []byte) bool {
	for _, c := range value {
		if c == 0 || c == '\r' || c == '\n' {
			return false
		}
	}
	return true
}
