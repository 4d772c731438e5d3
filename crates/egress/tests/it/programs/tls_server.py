# A TLS server on loopback that says back each line: `tls_server.py FOLDER`, which holds cert and key. Prints its port; ends with its input.
import os, socket, ssl, sys, threading

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/cert", sys.argv[1] + "/key")
listener = socket.create_server(("127.0.0.1", 0))


def serve(client):
    try:
        with context.wrap_socket(client, server_side=True) as stream, stream.makefile("rwb") as lines:
            for line in lines:
                lines.write(b"echo " + line)
                lines.flush()
    except OSError:
        pass  # a warm connection that nobody wanted says nothing


def accept():
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


threading.Thread(target=accept, daemon=True).start()
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
os._exit(0)
