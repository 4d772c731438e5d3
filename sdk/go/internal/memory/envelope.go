package memory

import "encoding/binary"

// EnvelopeSize is the number of bytes before a message's head.
const EnvelopeSize = 64

// TotalUnknown is the total of a body of unknown length.
const TotalUnknown = ^uint64(0)

// MaxHead is the maximum of bytes of a head.
const MaxHead = 65536

const envelopeVersion = 1

// MessageKind is the kind of a message.
type MessageKind uint8

// The kinds.
const (
	KindCall   MessageKind = 1 // a call, which has an answer
	KindAnswer MessageKind = 2 // the answer, or its first part
	KindEvent  MessageKind = 3 // an event, which has no answer
	KindPart   MessageKind = 4 // a further part of the body of a call, event or answer
	KindCancel MessageKind = 5 // the sender cancels the call, or cannot complete its body
)

// The flags.
const (
	FlagMore     uint16 = 1 // more parts of this body follow
	FlagPlatform uint16 = 2 // status is an error of the platform, not of the function
	FlagParts    uint16 = 4 // the caller takes an answer in parts
)

// Envelope is a private copy of a message's first bytes.
type Envelope struct {
	Kind     MessageKind
	Flags    uint16
	Status   uint16
	Reason   uint16
	Call     uint64
	Deadline uint64
	Trace    [16]byte
	Span     [8]byte
	Head     uint32
	Body     uint32
	Total    uint64
}

// Has reports whether a flag is set.
func (e *Envelope) Has(flag uint16) bool { return e.Flags&flag != 0 }

// BodyOffset is the offset of the body from the message's start.
func (e *Envelope) BodyOffset() uint32 { return BodyAt(e.Head) }

// BodyAt is the offset of the body after a head of this length.
func BodyAt(head uint32) uint32 { return (EnvelopeSize + head + 7) &^ 7 }

// Put writes the contract's bytes; to has at least EnvelopeSize.
func (e *Envelope) Put(to []byte) {
	le, to := binary.LittleEndian, to[:EnvelopeSize]
	to[0], to[1] = envelopeVersion, byte(e.Kind)
	le.PutUint16(to[2:], e.Flags)
	le.PutUint16(to[4:], e.Status)
	le.PutUint16(to[6:], e.Reason)
	le.PutUint64(to[8:], e.Call)
	le.PutUint64(to[16:], e.Deadline)
	copy(to[24:40], e.Trace[:])
	copy(to[40:48], e.Span[:])
	le.PutUint32(to[48:], e.Head)
	le.PutUint32(to[52:], e.Body)
	le.PutUint64(to[56:], e.Total)
}

// ReadEnvelope reads a private copy of an envelope; length is that of the message according to its descriptor.
func ReadEnvelope(from *[EnvelopeSize]byte, length uint32) (e Envelope, err error) {
	le := binary.LittleEndian
	e = Envelope{
		Kind: MessageKind(from[1]), Flags: le.Uint16(from[2:]), Status: le.Uint16(from[4:]), Reason: le.Uint16(from[6:]),
		Call: le.Uint64(from[8:]), Deadline: le.Uint64(from[16:]),
		Trace: [16]byte(from[24:40]), Span: [8]byte(from[40:48]),
		Head: le.Uint32(from[48:]), Body: le.Uint32(from[52:]), Total: le.Uint64(from[56:]),
	}
	switch {
	case from[0] != envelopeVersion:
		return e, MemoryError("version")
	case e.Kind < KindCall || e.Kind > KindCancel:
		return e, MemoryError("kind")
	case e.Head > MaxHead || uint64(e.BodyOffset())+uint64(e.Body) > uint64(length):
		return e, MemoryError("length")
	case e.Total < uint64(e.Body):
		return e, MemoryError("total")
	}
	return e, nil
}
