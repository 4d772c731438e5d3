"""Imports the native module, which nearpath.dataflow requires."""

try:
    from nearpath import _nearpath
except ImportError as missing:
    raise ImportError("nearpath.dataflow needs the native module of the SDK: install a wheel for this system") from missing

Authority = _nearpath.dataflow.Authority
Checkpoints = _nearpath.dataflow.Checkpoints
Listener = _nearpath.dataflow.Listener
Outbox = _nearpath.dataflow.Outbox
PeerLostError = _nearpath.dataflow.PeerLostError
RendezvousConnection = _nearpath.dataflow.RendezvousConnection
ScaleOutDecisions = _nearpath.dataflow.ScaleOutDecisions
Streams = _nearpath.dataflow.Streams
check_topology = _nearpath.dataflow.check_topology
decode = _nearpath.dataflow.decode
die_with_parent = _nearpath.dataflow.die_with_parent
encode = _nearpath.dataflow.encode
expand_graph = _nearpath.dataflow.expand_graph
integer_partitions = _nearpath.dataflow.integer_partitions
issue_ticket = _nearpath.dataflow.issue_ticket
key_partition = _nearpath.dataflow.key_partition
key_partitions = _nearpath.dataflow.key_partitions
read_rendezvous_key = _nearpath.dataflow.read_rendezvous_key
render_graph = _nearpath.dataflow.render_graph
start_heartbeat = _nearpath.dataflow.start_heartbeat
text_partitions = _nearpath.dataflow.text_partitions
