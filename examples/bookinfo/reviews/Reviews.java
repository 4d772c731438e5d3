import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Serves reviews of books, as JSON: GET /1 returns them with stars, POST /1 stores the stars of a reviewer (a form
 * with `reviewer` and `stars`). The stars are of another function, which is called by name: the one in the query
 * (`?ratings=`), or else the one in the variable RATINGS.
 */
public final class Reviews {
    private record Review(String reviewer, String text) {}

    private static final Map<String, List<Review>> REVIEWS = Map.of(
        "1", List.of(
            new Review("ann", "The creature has the better arguments."),
            new Review("ben", "Too many letters, but what an ending.")),
        "2", List.of(
            new Review("ann", "Skip no chapter about whales."),
            new Review("ben", "The sea is the main character.")));
    private static final List<String> RATINGS = List.of("ratings", "ratings-redis");
    private static final String DEFAULT_RATINGS = System.getenv().getOrDefault("RATINGS", "ratings");
    private static final Duration CALL_TIMEOUT = Duration.ofSeconds(50); // a callee that sleeps is started first
    private static final int MAX_FORM_BYTES = 1024;
    /** A member of the JSON object that ratings return; names and stars contain nothing to unescape. */
    private static final Pattern STARS = Pattern.compile("\"([a-z]+)\"\\s*:\\s*([1-5])");
    private static final HttpClient CLIENT =
        HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    /** Ends a request with a status other than 200. */
    private static final class RequestError extends Exception {
        final int status;

        RequestError(int status, String text) {
            super(text);
            this.status = status;
        }
    }

    public static void main(String[] arguments) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 5000), 128);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", Reviews::respond);
        server.start();
    }

    private static void respond(HttpExchange exchange) throws IOException {
        int status = 200;
        String type = "application/json";
        String text;
        try {
            text = handle(exchange);
        } catch (RequestError error) {
            status = error.status;
            type = "text/plain";
            text = error.getMessage() + "\n";
        }
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", type);
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private static String handle(HttpExchange exchange) throws IOException, RequestError {
        String book = exchange.getRequestURI().getPath().substring(1);
        List<Review> reviews = REVIEWS.get(book);
        if (reviews == null) throw new RequestError(404, "no reviews of book \"" + book + "\"");
        String ratings = chosenRatings(exchange.getRequestURI().getQuery());
        return switch (exchange.getRequestMethod()) {
            case "GET" -> readReviews(book, reviews, ratings);
            case "POST" -> storeStars(book, readForm(exchange, reviews), ratings);
            default -> throw new RequestError(405, "expected GET or POST");
        };
    }

    private static String chosenRatings(String query) throws RequestError {
        String ratings = DEFAULT_RATINGS;
        for (String pair : query == null ? new String[0] : query.split("&")) {
            if (pair.startsWith("ratings=")) ratings = pair.substring("ratings=".length());
        }
        if (RATINGS.contains(ratings)) return ratings;
        String expected = String.join(" or ", RATINGS);
        throw new RequestError(400, "unknown ratings \"" + ratings + "\": expected " + expected);
    }

    /** Reviews without stars are better than none: an error of the ratings is a part of the response. */
    private static String readReviews(String book, List<Review> reviews, String ratings) {
        Map<String, String> stars = Map.of();
        String missing = "";
        try {
            stars = parseStars(callRatings(ratings, book, null));
        } catch (RequestError error) {
            missing = quote(ratings) + ":" + quote(error.getMessage());
        }
        Map<String, String> found = stars;
        String list = reviews.stream()
            .map(one -> "{\"reviewer\":%s,\"text\":%s,\"stars\":%s}".formatted(
                quote(one.reviewer), quote(one.text), found.getOrDefault(one.reviewer, "null")))
            .collect(Collectors.joining(","));
        return "{\"ratings\":%s,\"reviews\":[%s],\"missing\":{%s}}\n".formatted(quote(ratings), list, missing);
    }

    private static String storeStars(String book, String form, String ratings) throws RequestError {
        try {
            return callRatings(ratings, book, BodyPublishers.ofString(form));
        } catch (RequestError error) {
            throw new RequestError(error.status, ratings + ": " + error.getMessage());
        }
    }

    private static String readForm(HttpExchange exchange, List<Review> reviews) throws IOException, RequestError {
        byte[] bytes = exchange.getRequestBody().readNBytes(MAX_FORM_BYTES + 1);
        if (bytes.length > MAX_FORM_BYTES) {
            throw new RequestError(413, "a form has at most " + MAX_FORM_BYTES + " bytes");
        }
        String form = new String(bytes, StandardCharsets.UTF_8);
        List<String> fields = List.of(form.split("&"));
        if (reviews.stream().anyMatch(one -> fields.contains("reviewer=" + one.reviewer))) return form;
        String known = reviews.stream().map(Review::reviewer).collect(Collectors.joining(" or "));
        throw new RequestError(400, "only a reviewer of the book can rate it: expected reviewer=" + known);
    }

    /** Calls the ratings by name, with a form by POST. Status 400 is passed on; any other failure is 502. */
    private static String callRatings(String ratings, String book, BodyPublisher form) throws RequestError {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://" + ratings + "/" + book));
        request.timeout(CALL_TIMEOUT);
        if (form != null) request.header("Content-Type", "application/x-www-form-urlencoded").POST(form);
        HttpResponse<String> response;
        try {
            response = CLIENT.send(request.build(), BodyHandlers.ofString());
        } catch (IOException | InterruptedException error) {
            throw new RequestError(502, error.toString());
        }
        int status = response.statusCode();
        if (status == 200) return response.body();
        String text = "status " + status + ": " + response.body().strip();
        throw new RequestError(status == 400 ? 400 : 502, text);
    }

    private static Map<String, String> parseStars(String json) {
        Map<String, String> stars = new LinkedHashMap<>();
        Matcher members = STARS.matcher(json);
        while (members.find()) stars.put(members.group(1), members.group(2));
        return stars;
    }

    /** Writes a text as a JSON string. */
    private static String quote(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') json.append('\\').append(one);
            else if (one < ' ') json.append("\\u%04x".formatted((int) one));
            else json.append(one);
        }
        return json.append('"').toString();
    }
}
