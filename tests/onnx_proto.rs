//! `src/onnx/proto.rs` is what prost-build makes of `src/onnx/onnx.proto`.

use std::path::Path;

#[test]
fn the_checked_in_source_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/onnx");
    let out = tempfile::tempdir().unwrap();
    let descriptors = protox::compile([folder.join("onnx.proto")], [&folder]).unwrap();
    prost_build::Config::new()
        .bytes([".onnx.TensorProto.raw_data"])
        .disable_comments(["."])
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    let fresh = std::fs::read_to_string(out.path().join("onnx.rs")).unwrap();
    let path = folder.join("proto.rs");
    if std::env::var_os("ARENIC_REGENERATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == fresh, "regenerate it: ARENIC_REGENERATE=1 cargo test --test onnx_proto");
}
