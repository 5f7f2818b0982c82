//! The page that the binary serves: all of it, to browsers' caches, and with a policy that lets nothing else in.

use std::fs;
use std::path::Path;

use reqwest::Response;

use crate::support::Server;

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = crate::support::http_client().build().unwrap().get(format!("http://{}{path}", server.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// What `npm run build` has left, as the path that serves it and the bytes.
fn built() -> Vec<(String, Vec<u8>)> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console/dist");
    let mut files = vec![("/".to_owned(), fs::read(dist.join("index.html")).unwrap())];
    for entry in fs::read_dir(dist.join("assets")).unwrap() {
        let path = entry.unwrap().path();
        files.push((format!("/assets/{}", path.file_name().unwrap().to_str().unwrap()), fs::read(&path).unwrap()));
    }
    files
}

#[tokio::test]
async fn every_built_file_is_served_under_the_policy() {
    let server = Server::start().await;
    let files = built();
    assert!(files.len() > 3, "a page, a script, a style sheet and an icon: {files:?}");
    for (path, bytes) in files {
        let answer = get(&server, &path, &[]).await;
        assert_eq!(answer.status(), 200, "{path}");
        let kind = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(header(&answer, "content-type"), kind, "{path}");
        assert_eq!(header(&answer, "x-content-type-options"), "nosniff", "{path}");
        let policy = header(&answer, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert_eq!(answer.bytes().await.unwrap(), bytes, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_browser_keeps_assets_for_ever_and_asks_for_the_page_each_time() {
    let server = Server::start().await;
    for (path, bytes) in built() {
        let answer = get(&server, &path, &[("accept-encoding", "br, gzip")]).await;
        assert_eq!(header(&answer, "content-encoding"), "gzip", "{path}");
        assert_eq!(header(&answer, "vary"), "accept-encoding", "{path}");
        let keep = if path == "/" { "no-cache" } else { "public, max-age=31536000, immutable" };
        assert_eq!(header(&answer, "cache-control"), keep, "{path}");
        let tag = header(&answer, "etag").to_owned();
        let packed = answer.bytes().await.unwrap();
        assert!(packed.starts_with(&[0x1f, 0x8b]), "{path} is in gzip");
        assert!(bytes.len() < 1024 || packed.len() < bytes.len(), "{path}");
        let again = get(&server, &path, &[("if-none-match", &format!("\"other\", {tag}"))]).await;
        assert_eq!(again.status(), 304, "{path}");
        assert_eq!(header(&again, "etag"), tag, "{path}");
        assert!(again.bytes().await.unwrap().is_empty(), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_was_not_built_is_not_found_and_says_so() {
    let server = Server::start().await;
    for path in ["/assets/index.html", "/assets/none.js", "/assets/..%2findex.html", "/assets/", "/sessions"] {
        let answer = get(&server, path, &[]).await;
        assert_eq!(answer.status(), 404, "{path}");
        assert_eq!(header(&answer, "content-type"), "application/json", "{path}");
        let problem: serde_json::Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(problem["code"], "NOT_SUPPORTED", "{path}");
    }
    server.stop().await;
}
