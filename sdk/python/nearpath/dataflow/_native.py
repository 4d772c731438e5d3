"""The native half; without it there is no dataflow."""

try:
    from nearpath import _nearpath
except ImportError as missing:
    raise ImportError("nearpath.dataflow needs the native half of the SDK: install a wheel for this system") from missing

Authority = _nearpath.dataflow.Authority
Checkpoints = _nearpath.dataflow.Checkpoints
Listener = _nearpath.dataflow.Listener
Growth = _nearpath.dataflow.Growth
RendezvousConnection = _nearpath.dataflow.Line
Outbox = _nearpath.dataflow.Outbox
Streams = _nearpath.dataflow.Streams
check = _nearpath.dataflow.check
decode = _nearpath.dataflow.decode
die_with_parent = _nearpath.dataflow.die_with_parent
encode = _nearpath.dataflow.encode
expand = _nearpath.dataflow.expand
picture = _nearpath.dataflow.picture
rendezvous_key = _nearpath.dataflow.rendezvous_key
share = _nearpath.dataflow.share
shares = _nearpath.dataflow.shares
ticket = _nearpath.dataflow.ticket
text_shares = _nearpath.dataflow.text_shares
