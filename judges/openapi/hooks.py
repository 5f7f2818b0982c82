"""What the judge does not know by itself: NDJSON, which goes out as it was written."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(ctx, value):
    return value.encode("utf-8", errors="surrogatepass") if isinstance(value, str) else str(value).encode()
