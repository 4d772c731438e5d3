package memory

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"
)

// vectors is contract/vectors/memory.json.
type vectors struct {
	Pools []struct {
		Header  string
		Bytes   uint64
		Classes []struct {
			Size, Count         uint32
			Words, Hints, Slots uint64
		}
	}
	BadPools []struct {
		Header, Fault string
		Region        uint64
	} `json:"bad_pools"`
	Descriptors []struct {
		Bytes                             string
		Class                             int
		Index, Generation, Offset, Length uint32
		At                                *uint64
		Fault                             *string
	}
	Words []struct {
		Before string
		After  *string
		Step   struct {
			Name         LeaseAction
			By, From, To EndpointID
		}
	}
	Envelopes []struct {
		Bytes  string
		Length uint32
		Fault  *string
		Fields *struct {
			Kind                        MessageKind
			Flags, Status, Reason       uint16
			Call, Deadline, Trace, Span string
			Head, Body                  uint32
			Total                       string
			BodyAt                      uint32 `json:"body_at"`
		}
	}
	Heads []struct {
		Bytes  string
		Fault  *string
		Fields [][2]string
	}
	Rings []struct {
		Capacity, Tail, Head uint32
		Room, Used           *uint32
		NextPush             uint64 `json:"next_push_at"`
		NextPop              uint64 `json:"next_pop_at"`
	}
	Channels []struct {
		Capacity       uint32
		Answers, Bytes uint64
	}
	Latency []struct {
		Micros int64
		Bucket int
	}
}

func read(t testing.TB) (v vectors) {
	text, err := os.ReadFile("../../../../contract/vectors/memory.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func unhex(t testing.TB, text string) []byte {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func number(t testing.TB, text string) uint64 {
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func fault(err error) string {
	if err == nil {
		return ""
	}
	return string(err.(MemoryError))
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func TestPoolsMatchTheVectors(t *testing.T) {
	v := read(t)
	for _, want := range v.Pools {
		header := unhex(t, want.Header)
		g, err := ReadGeometry(header, want.Bytes)
		if err != nil || g.Bytes != want.Bytes || string(g.Header()) != string(header) {
			t.Errorf("%+v: %v", g, err)
		}
		for k, class := range want.Classes {
			if g.Classes[k] != SlotClass(class) {
				t.Errorf("class %d: %+v, not %+v", k, g.Classes[k], class)
			}
		}
	}
	for k, bad := range v.BadPools {
		if _, err := ReadGeometry(unhex(t, bad.Header), bad.Region); fault(err) != bad.Fault {
			t.Errorf("bad pool %d: %v, not %s", k, err, bad.Fault)
		}
	}
}

func TestDescriptorsMatchTheVectors(t *testing.T) {
	v := read(t)
	pool, _ := ReadGeometry(unhex(t, v.Pools[0].Header), v.Pools[0].Bytes)
	for _, want := range v.Descriptors {
		d := Descriptor{NewSlot(want.Class, want.Index), want.Generation, want.Offset, want.Length}
		bytes := d.Bytes()
		if hex.EncodeToString(bytes[:]) != want.Bytes || DescriptorOf(d.Words()) != d {
			t.Errorf("%+v is %x", d, bytes)
		}
		if d.Slot.Class() != want.Class || d.Slot.Index() != want.Index {
			t.Errorf("slot %x is %d, %d", d.Slot, d.Slot.Class(), d.Slot.Index())
		}
		if err := d.Check(pool.SlotSize(d.Slot)); fault(err) != deref(want.Fault) {
			t.Errorf("%+v: %v, not %v", d, err, deref(want.Fault))
		}
		if want.At != nil && pool.SlotAt(d.Slot) != *want.At {
			t.Errorf("%+v lies at %d", d, pool.SlotAt(d.Slot))
		}
	}
}

func TestLeaseWordsMatchTheVectors(t *testing.T) {
	for _, want := range read(t).Words {
		step := LeaseStep{want.Step.Name, want.Step.By, want.Step.From, want.Step.To}
		after, ok := LeaseWord(number(t, want.Before)).After(step)
		if ok != (want.After != nil) || ok && after != LeaseWord(number(t, *want.After)) {
			t.Errorf("%s %+v: %x %v", want.Before, step, after, ok)
		}
	}
}

func TestEnvelopesMatchTheVectors(t *testing.T) {
	for k, want := range read(t).Envelopes {
		bytes := [EnvelopeSize]byte(unhex(t, want.Bytes))
		e, err := ReadEnvelope(&bytes, want.Length)
		if fault(err) != deref(want.Fault) {
			t.Errorf("envelope %d: %v, not %v", k, err, deref(want.Fault))
		}
		if want.Fields == nil {
			continue
		}
		f := want.Fields
		expected := Envelope{
			f.Kind, f.Flags, f.Status, f.Reason, number(t, f.Call), number(t, f.Deadline),
			[16]byte(unhex(t, f.Trace)), [8]byte(unhex(t, f.Span)), f.Head, f.Body, number(t, f.Total),
		}
		var again [EnvelopeSize]byte
		e.Put(again[:])
		if e != expected || e.BodyOffset() != f.BodyAt || again != bytes {
			t.Errorf("envelope %d: %+v, not %+v", k, e, expected)
		}
	}
}

func TestHeadsMatchTheVectors(t *testing.T) {
	for k, want := range read(t).Heads {
		bytes := unhex(t, want.Bytes)
		var fields [][2]string
		err := EachField(bytes, func(name, value []byte) {
			fields = append(fields, [2]string{string(name), hex.EncodeToString(value)})
		})
		if fault(err) != deref(want.Fault) {
			t.Errorf("head %d: %v, not %v", k, err, deref(want.Fault))
		}
		if want.Fault != nil {
			continue
		}
		var again []byte
		for i, field := range want.Fields {
			if fields[i] != field {
				t.Errorf("head %d: field %v, not %v", k, fields[i], field)
			}
			again, err = AppendField(again, field[0], string(unhex(t, field[1])))
		}
		if err != nil || string(again) != string(bytes) || len(fields) != len(want.Fields) {
			t.Errorf("head %d: written as %x, %v", k, again, err)
		}
	}
}

func TestRingsMatchTheVectors(t *testing.T) {
	for _, want := range read(t).Rings {
		region, file, err := CreateRegion("ring", ringBytes(want.Capacity))
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		r := ringAt(region, 0, want.Capacity)
		r.tail.Store(want.Tail)
		r.head.Store(want.Head)
		p, c := Producer{r, want.Tail, want.Head}, Consumer{r, want.Head, want.Head}
		room, err := p.FreeSlots()
		if (err != nil) != (want.Room == nil) || err == nil && room != *want.Room {
			t.Errorf("%+v: room %d, %v", want, room, err)
		}
		popped := uint32(0)
		for {
			_, ok, err := c.Pop()
			if (err != nil) != (want.Used == nil) {
				t.Errorf("%+v: %v", want, err)
			}
			if !ok {
				break
			}
			popped++
		}
		if want.Used != nil && popped != *want.Used {
			t.Errorf("%+v: popped %d", want, popped)
		}
		if want.Room != nil && *want.Room > 0 {
			before := region.words64(want.NextPush, 2)
			if err := p.Push(Descriptor{1, 2, 3, 4}); err != nil || before[0].Load() != 1|2<<32 || before[1].Load() != 3|4<<32 {
				t.Errorf("%+v: not pushed at %d: %v", want, want.NextPush, err)
			}
		}
	}
}

func TestChannelSizesAndLatencyBucketsMatchTheVectors(t *testing.T) {
	v := read(t)
	for _, want := range v.Channels {
		if ResponsesOffset(want.Capacity) != want.Answers || ChannelBytes(want.Capacity) != want.Bytes {
			t.Errorf("%+v: %d, %d", want, ResponsesOffset(want.Capacity), ChannelBytes(want.Capacity))
		}
	}
	for _, want := range v.Latency {
		if got := bucketOfMicros(want.Micros); got != want.Bucket {
			t.Errorf("%d µs in bucket %d, not %d", want.Micros, got, want.Bucket)
		}
	}
	if bucket(3*time.Microsecond) != 0 || bucket(time.Duration(1<<62)) != 9 {
		t.Error("buckets of durations")
	}
}
