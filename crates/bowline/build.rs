//! Puts the console's built files into the binary: a table of them, each with its kind, a tag for caches, and itself in gzip.
#![allow(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]
#![allow(clippy::disallowed_methods, reason = "a build script is no part of a node")]

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let dist = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../console/dist").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut table = String::from("&[\n");
    for folder in ["", "assets"] {
        let mut paths = fs::read_dir(dist.join(folder))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        paths.retain(|path| path.is_file());
        paths.sort();
        for path in paths {
            table.push_str(&row(&path, &out)?);
        }
    }
    table.push(']');
    fs::write(out.join("console.rs"), table)?;
    Ok(())
}

/// One file as a `ConsoleFile { … }`.
fn row(path: &Path, out: &Path) -> Result<String, Box<dyn Error>> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or("a file of the console has an odd name")?;
    let kind = match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => return Err(format!("{name} is of a kind that the server does not know; add it to build.rs").into()),
    };
    let plain = fs::read(path)?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&plain)?;
    let gzipped = out.join(format!("{name}.gz"));
    fs::write(&gzipped, encoder.finish()?)?;
    // Another compiler may hash differently, which costs each browser one download.
    let mut hasher = DefaultHasher::new();
    plain.hash(&mut hasher);
    let mut row = String::new();
    write!(row, "ConsoleFile {{ name: {name:?}, kind: {kind:?}, tag: \"W/\\\"{:016x}\\\"\", ", hasher.finish())?;
    writeln!(
        row,
        "plain: include_bytes!({:?}), gzipped: include_bytes!({:?}) }},",
        path.display().to_string(),
        gzipped.display().to_string()
    )?;
    Ok(row)
}
