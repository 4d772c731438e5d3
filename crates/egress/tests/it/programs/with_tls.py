# TLS by the program itself: `with_tls.py HOST PORT CERTIFICATE`. Sessions are resumed on connections that come later.
import socket, ssl, sys

host, port, certificate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context = ssl.create_default_context(cafile=certificate)
    context.minimum_version = context.maximum_version = version
    session = None
    for turn in range(3):
        plain = socket.socket()
        plain.connect((host, port))
        with context.wrap_socket(plain, server_hostname="here.test", session=session) as stream:
            stream.sendall(b"turn %d\n" % turn)
            print(stream.recv(99).decode().strip(), stream.version(), stream.session_reused)
            session = stream.session
