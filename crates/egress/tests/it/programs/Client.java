import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;

/** Java's ways to connect: {@code Client HOST PORT}. Its sockets are IPv6 ones. */
public class Client {
    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        URI base = URI.create("http://" + host + ":" + port);
        for (int i = 0; i < 3; i++) {
            try (Socket socket = new Socket(host, port)) {
                socket.setTcpNoDelay(true);
                socket.getOutputStream().write(("socket " + i + "\n").getBytes());
                socket.shutdownOutput();
                new BufferedReader(new InputStreamReader(socket.getInputStream())).lines().forEach(System.out::println);
            }
        }
        try (Socket socket = new Socket()) {
            socket.setKeepAlive(true);
            socket.connect(new InetSocketAddress(host, port), 20_000);
            socket.getOutputStream().write("with a timeout\n".getBytes());
            System.out.println(new BufferedReader(new InputStreamReader(socket.getInputStream())).readLine());
        }
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress(host, port))) {
            channel.write(ByteBuffer.wrap("channel\n".getBytes()));
            ByteBuffer answer = ByteBuffer.allocate(13);
            while (answer.hasRemaining() && channel.read(answer) >= 0) {
            }
            System.out.print(new String(answer.array()));
        }
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        ArrayList<CompletableFuture<HttpResponse<String>>> answers = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            HttpRequest request = HttpRequest.newBuilder(base.resolve("/java/" + i)).build();
            answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofString()));
        }
        for (CompletableFuture<HttpResponse<String>> answer : answers) {
            System.out.print(answer.get().body());
        }
    }
}
