use super::error::ArrayProblem;
use super::mapped::MappedFile;
use super::*;
use arenic_ir::types::{DType, TensorType};
use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use zip::write::{SimpleFileOptions, ZipWriter};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data").join(name)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn f32s(array: &Array) -> Vec<f32> {
    array.bytes().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// What is left in a folder, hidden files included.
fn files(folder: &TempDir) -> Vec<String> {
    let names = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = names.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    names
}

/// An archive of npy members, for the other tests of this module.
pub(super) fn npz(arrays: &[(&str, DType, &[usize], &[u8])]) -> Npz {
    let folder = folder();
    let path = folder.path().join("a.npz");
    let types: Vec<_> =
        arrays.iter().map(|(n, d, s, _)| (n.to_string(), TensorType::new(*d, &s[1..]))).collect();
    let mut spool = OutputSpool::new(&path, &types).unwrap();
    for (i, (_, _, shape, bytes)) in arrays.iter().enumerate() {
        for step in 0..shape[0] {
            let len = bytes.len() / shape[0];
            spool.append(i, &bytes[step * len..][..len]).unwrap();
        }
    }
    spool.finish().unwrap();
    Npz::open(path).unwrap()
}

#[test]
fn numpy_files_stored_and_deflated() {
    for name in ["stored.npz", "deflated.npz"] {
        let npz = Npz::open(fixture(name)).unwrap();
        assert_eq!(npz.names().collect::<Vec<_>>(), ["x", "y", "mask", "lr", "none", "a/b.c"]);
        let x = npz.array("x").unwrap();
        assert_eq!(*x.ty(), TensorType::new(DType::F32, [4, 3]));
        assert_eq!(f32s(x), (0..12).map(|i| i as f32 / 2.0).collect::<Vec<_>>());
        let mut last = [0; 4];
        x.read(44, &mut last).unwrap();
        assert_eq!(f32::from_le_bytes(last), 5.5);
        let y = npz.array("y").unwrap();
        let expected = [5i64, -1, 1 << 40, 0].map(i64::to_le_bytes).concat();
        assert_eq!((y.ty().dtype, y.bytes()), (DType::I64, &expected[..]));
        let mask = npz.array("mask").unwrap();
        assert_eq!(*mask.ty(), TensorType::new(DType::Bool, [2, 2]));
        assert_eq!(mask.bytes(), [1, 0, 0, 1]);
        let lr = npz.array("lr").unwrap();
        assert_eq!(*lr.ty(), TensorType::scalar(DType::F64));
        assert_eq!(lr.bytes(), 0.25f64.to_le_bytes());
        let none = npz.array("none").unwrap();
        assert_eq!((none.ty().shape.as_slice(), none.bytes().len()), (&[0, 3][..], 0));
        assert_eq!(npz.array("a/b.c").unwrap().bytes(), [1, 2, 3]);
        assert!(npz.array("z").is_none());
    }
}

#[test]
fn every_supported_type_and_version() {
    let npz = Npz::open(fixture("dtypes.npz")).unwrap();
    let types: Vec<_> = npz.arrays().iter().map(|a| a.ty().dtype).collect();
    use DType::*;
    assert_eq!(types, [Bool, I8, U8, I16, U16, I32, U32, I64, U64, F32, F64]);
    for array in npz.arrays() {
        assert_eq!(array.bytes().len() as u64, 2 * array.ty().dtype.size());
    }
    let npz = Npz::open(fixture("versions.npz")).unwrap();
    assert_eq!(npz.arrays().len(), 3);
    assert!(npz.arrays().iter().all(|a| f32s(a)[1] == 0.5));
}

#[test]
fn an_order_that_does_not_matter_is_accepted() {
    let npz = Npz::open(fixture("fortran_row.npz")).unwrap();
    assert_eq!(npz.array("w").unwrap().ty().shape, [5, 1]);
    let npz = Npz::open(fixture("big_endian_byte.npz")).unwrap();
    assert_eq!(npz.array("w").unwrap().bytes(), [0, 1, 2]);
}

#[test]
fn unusable_arrays_are_named_with_their_fault() {
    let cases = [
        ("fortran.npz", "f32[2,3] is stored in Fortran order"),
        ("big_endian.npz", "element type >f4 (big-endian)"),
        ("f16.npz", "element type <f2 (float16)"),
        ("complex.npz", "element type <c8 (complex)"),
        ("text.npz", "element type <U1 (text)"),
        ("objects.npz", "element type |O (Python objects)"),
        ("fields.npz", "element type with named fields"),
        ("version9.npz", "npy format 9.0"),
        ("not_npy.npz", "not a NumPy array"),
        ("short.npz", "takes 20 bytes, the file holds 19"),
        ("long.npz", "takes 20 bytes, the file holds 21"),
        ("twice.npz", "occurs twice"),
        ("bzip2.npz", "not supported"),
        ("huge.npz", "too large"),
        ("checksum.npz", "checksum"),
    ];
    for (name, expected) in cases {
        let error = Npz::open(fixture(name)).unwrap_err();
        assert!(matches!(error, DataError::Array { .. }), "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(name), "{name}: {text}");
    }
    let error = Npz::open(fixture("truncated.npz")).unwrap_err();
    assert!(matches!(error, DataError::Format { format: "npz", .. }), "{error:?}");
    assert!(matches!(Npz::open(fixture("")).unwrap_err(), DataError::NotAFile(_)));
    let error = Npz::open(fixture("absent.npz")).unwrap_err();
    assert!(error.to_string().starts_with("cannot open "), "{error}");
}

#[test]
fn bools_of_a_state_are_checked() {
    assert!(Npz::open(fixture("bool7.npz")).is_ok());
    let error = TensorFile::open(fixture("bool7.npz")).unwrap_err();
    assert!(matches!(error, DataError::Array { problem: ArrayProblem::BoolValue, .. }));
}

/// Bytes that occur in headers, to reach further into parsers than random ones do.
const TELLING: &[u8] = b"\0\x01\xff\x7f{}()[]'\",:0129<>|=LPK ";

/// A small generator for the damage.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides
    }
}

#[test]
fn damaged_files_never_panic() {
    let folder = folder();
    let path = folder.path().join("damaged");
    let state = folder.path().join("state");
    save_example(&state);
    let mut dice = Dice(7);
    for whole in [fixture("stored.npz"), fixture("deflated.npz"), state] {
        let whole = std::fs::read(whole).unwrap();
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..dice.roll(4) {
                let at = dice.roll(bytes.len());
                bytes[at] = match dice.roll(2) {
                    0 => bytes[at] ^ (1 << dice.roll(8)),
                    _ => TELLING[dice.roll(TELLING.len())],
                };
            }
            match dice.roll(3) {
                0 => bytes.truncate(dice.roll(bytes.len() + 1)),
                1 => drop(bytes.drain(..dice.roll(16))),
                _ => {}
            }
            std::fs::write(&path, &bytes).unwrap();
            for array in Npz::open(&path).iter().flat_map(|npz| npz.arrays()) {
                assert_eq!(array.bytes().len() as u64, array.ty().bytes());
            }
            if let Ok(file) = TensorFile::open(&path) {
                for tensor in file.tensors() {
                    assert_eq!(tensor.bytes().len() as u64, tensor.ty().bytes());
                }
                drop(Progress::of(&file));
            }
        }
    }
}

#[test]
fn headers_that_are_not_ones() {
    let open = |header: &str| {
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend((header.len() as u16).to_le_bytes());
        npy.extend(header.as_bytes());
        npy::read_header(&mut &npy[..])
    };
    let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3,), }\n";
    assert_eq!(open(good).unwrap().0, TensorType::new(DType::F32, [2, 3]));
    let good = r#"{"shape":(),"descr":"=i8","fortran_order":True}"#;
    assert_eq!(open(good).unwrap().0, TensorType::scalar(DType::I64));
    for bad in [
        "",
        "{}",
        "{'descr': '<f4', 'shape': (2,)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2)} + 1",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': 4, 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ((((((((",
        "{'descr",
    ] {
        assert!(matches!(open(bad), Err(ArrayProblem::Header(_))), "{bad}");
    }
}

#[test]
fn headers_written_are_read_back() {
    for dtype in DType::ALL {
        for shape in [vec![], vec![7], vec![2, 0, 3], vec![usize::MAX >> 20, 1], vec![1; 64]] {
            let header = npy::write_header(dtype, &shape);
            assert_eq!(header.len() % 64, 0);
            let (ty, len) = npy::read_header(&mut &header[..]).unwrap();
            assert_eq!((ty, len), (TensorType::new(dtype, shape), header.len() as u64));
        }
    }
}

#[test]
fn outputs_are_stacked_by_step() {
    let folder = folder();
    let path = folder.path().join("o.npz");
    let outputs = [
        ("/a".to_owned(), TensorType::new(DType::U8, [2])),
        ("empty".to_owned(), TensorType::new(DType::F32, [0, 2])),
        ("ü".to_owned(), TensorType::scalar(DType::I16)),
    ];
    let mut spool = OutputSpool::new(&path, &outputs).unwrap();
    for step in 0..3u8 {
        spool.append(0, &[step, step + 10]).unwrap();
        spool.append(1, &[]).unwrap();
        spool.append(2, &i16::from(step).to_le_bytes()).unwrap();
    }
    assert!(!path.exists());
    spool.finish().unwrap();
    assert_eq!(files(&folder), ["o.npz"]);
    let npz = Npz::open(&path).unwrap();
    assert_eq!(npz.names().collect::<Vec<_>>(), ["/a", "empty", "ü"]);
    assert_eq!(npz.array("/a").unwrap().ty().shape, [3, 2]);
    assert_eq!(npz.array("/a").unwrap().bytes(), [0, 10, 1, 11, 2, 12]);
    assert_eq!(npz.array("empty").unwrap().ty().shape, [3, 0, 2]);
    assert_eq!(npz.array("ü").unwrap().bytes(), [0, 0, 1, 0, 2, 0]);
}

#[test]
fn outputs_that_fit_no_archive_are_refused() {
    let folder = folder();
    let path = folder.path().join("o.npz");
    let scalar = TensorType::scalar(DType::F32);
    let new = |outputs: &[(String, TensorType)]| OutputSpool::new(&path, outputs).unwrap_err();
    new(&[("a".into(), scalar.clone()), ("a".into(), scalar.clone())]);
    new(&[("a".repeat(70_000), scalar.clone())]);
    new(&[("a".into(), TensorType::new(DType::F32, [1; 64]))]);
    let nowhere = folder.path().join("no/o.npz");
    let error = OutputSpool::new(&nowhere, &[("a".into(), scalar)]).unwrap_err();
    assert!(error.to_string().contains("no/o.npz"), "{error}");
    assert!(files(&folder).is_empty());
}

fn save_example(path: &Path) {
    let types = [
        TensorType::new(DType::Bool, [3]),
        TensorType::new(DType::F32, [2, 1]),
        TensorType::scalar(DType::I64),
        TensorType::new(DType::F32, [0]),
    ];
    let floats = [1.5f32, -2.0].map(f32::to_le_bytes).concat();
    let tensors = [
        ("flags", &types[0], &[1u8, 0, 1][..]),
        ("w \"1\"/é", &types[1], &floats[..]),
        ("n", &types[2], &(-7i64).to_le_bytes()[..]),
        ("empty", &types[3], &[][..]),
    ];
    let progress = Progress { step: 12, seed: u64::MAX };
    save(path, tensors, &progress.to_metadata()).unwrap();
}

#[test]
fn states_survive_a_round_trip() {
    let folder = folder();
    let path = folder.path().join("s.safetensors");
    save_example(&path);
    let file = TensorFile::open(&path).unwrap();
    let names: Vec<_> = file.tensors().iter().map(Array::name).collect();
    assert_eq!(names, ["n", "w \"1\"/é", "empty", "flags"]);
    assert_eq!(file.tensor("n").unwrap().bytes(), (-7i64).to_le_bytes());
    assert_eq!(*file.tensor("flags").unwrap().ty(), TensorType::new(DType::Bool, [3]));
    assert_eq!(f32s(file.tensor("w \"1\"/é").unwrap()), [1.5, -2.0]);
    assert_eq!(Progress::of(&file).unwrap(), Some(Progress { step: 12, seed: u64::MAX }));

    let bytes = std::fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    assert_eq!(start % 8, 0);
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("flags").unwrap().data(), [1, 0, 1]);
    save_example(&path);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(files(&folder), ["s.safetensors"]);
}

#[test]
fn states_are_read_from_npz_too() {
    let file = TensorFile::open(fixture("deflated.npz")).unwrap();
    assert_eq!(file.tensor("mask").unwrap().bytes(), [1, 0, 0, 1]);
    assert_eq!(Progress::of(&file).unwrap(), None);
}

#[test]
fn bad_safetensors_are_refused() {
    let folder = folder();
    let path = folder.path().join("s");
    let open = |header: &str, data: &[u8]| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        std::fs::write(&path, bytes).unwrap();
        TensorFile::open(&path)
    };
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert!(open(&tensor("F32", "[1]", "[0,4]"), &[0; 4]).is_ok());
    assert!(open("{}", &[]).is_ok());
    let error = open(&tensor("F16", "[1]", "[0,2]"), &[0; 2]).unwrap_err();
    assert!(error.to_string().contains("element type F16"), "{error}");
    let error = open(&tensor("BOOL", "[2]", "[0,2]"), &[1, 2]).unwrap_err();
    assert!(matches!(error, DataError::Array { problem: ArrayProblem::BoolValue, .. }));
    for (header, data) in [
        (tensor("F32", "[1]", "[0,4]"), &[0; 3][..]),
        (tensor("F32", "[1]", "[0,4]"), &[0; 5]),
        (tensor("F32", "[2]", "[0,4]"), &[0; 4]),
        (tensor("F32", "[1]", "[4,0]"), &[0; 4]),
        (tensor("F32", "[-1]", "[0,4]"), &[0; 4]),
        (tensor("U8", "[9223372036854775807,4]", "[0,18446744073709551612]"), &[0; 4]),
        ("{".to_owned(), &[]),
        (r#"{"__metadata__":{"a":1}}"#.to_owned(), &[]),
    ] {
        let error = open(&header, data).unwrap_err();
        assert!(matches!(error, DataError::Format { .. }), "{header}: {error}");
    }
    // Offsets whose sum with the header's length does not fit 64 bits.
    let edge = (1u64 << 61) - 1;
    let tensors: Vec<_> = (0..8u64)
        .map(|i| {
            let (start, end) = (i * edge, (i + 1) * edge);
            format!(r#""{i}":{{"dtype":"U8","shape":[{edge}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    open(&format!("{{{}}}", tensors.join(",")), &[]).unwrap_err();
    for content in [&b""[..], b"PK", b"hello, world", b"\xff\xff\xff\xff\xff\xff\xff\xff{}"] {
        std::fs::write(&path, content).unwrap();
        assert!(matches!(TensorFile::open(&path), Err(DataError::Format { .. })));
    }
    let one = r#"{"__metadata__":{"arenic.step":"1"}}"#;
    assert!(Progress::of(&open(one, &[]).unwrap()).is_err());
    let word = r#"{"__metadata__":{"arenic.step":"x","arenic.seed":"0"}}"#;
    assert!(Progress::of(&open(word, &[]).unwrap()).is_err());
}

#[test]
fn states_that_cannot_be_saved_leave_the_file_alone() {
    let folder = folder();
    let path = folder.path().join("s");
    std::fs::write(&path, "before").unwrap();
    let ty = TensorType::new(DType::U8, [1]);
    let none = BTreeMap::new();
    let bad: [&[(&str, &TensorType, &[u8])]; 3] = [
        &[("a", &ty, &[1]), ("a", &ty, &[1])],
        &[("__metadata__", &ty, &[1])],
        &[("a", &ty, &[1, 2])],
    ];
    for tensors in bad {
        let error = save(&path, tensors.iter().copied(), &none).unwrap_err();
        assert!(matches!(error, DataError::Unwritable { .. }));
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(files(&folder), ["s"]);
}

#[test]
fn atomic_files_appear_whole_or_not_at_all() {
    let folder = folder();
    let path = folder.path().join("f");
    std::fs::write(&path, "before").unwrap();
    let mut file = AtomicFile::create(&path).unwrap();
    file.put(b"after").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"before");
    assert_eq!(files(&folder).len(), 2);
    drop(file);
    assert_eq!(files(&folder), ["f"]);
    let mut file = AtomicFile::create(&path).unwrap();
    file.put(b"after").unwrap();
    file.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"after");
    assert_eq!(files(&folder), ["f"]);
    let error = AtomicFile::create(folder.path().join("no/f")).unwrap_err();
    assert!(error.to_string().contains("no/f"), "{error}");
    assert!(matches!(AtomicFile::create(folder.path()), Err(DataError::NotAFile(_))));
    assert!(matches!(AtomicFile::create("/"), Err(DataError::NotAFile(_))));
    assert!(matches!(AtomicFile::create(""), Err(DataError::NotAFile(_))));
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("f");
    std::fs::write(&path, "before").unwrap();
    for mode in [0o600, 0o666, 0o640, 0o755, 0o400] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let mut file = AtomicFile::create(&path).unwrap();
        file.put(b"after").unwrap();
        file.commit().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, mode);
    }
}

#[cfg(unix)]
#[test]
fn what_dead_processes_left_is_removed() {
    let folder = folder();
    let path = folder.path().join("f");
    // Of no living process; of another file, or by somebody else's hand.
    let (left, others) = (".f.arenic-abcdef.tmp", [".f.abcdef.tmp", ".g.arenic-abcdef.tmp"]);
    for name in [left].into_iter().chain(others) {
        std::fs::write(folder.path().join(name), "left").unwrap();
    }
    let alive = AtomicFile::create(&path).unwrap();
    assert_eq!(files(&folder).len(), 3, "{:?}", files(&folder));
    AtomicFile::create(&path).unwrap().commit().unwrap();
    assert_eq!(files(&folder).len(), 4, "{:?}", files(&folder));
    alive.commit().unwrap();
    assert_eq!(files(&folder), [others[0], others[1], "f"]);
}

#[test]
fn a_path_is_tried_without_a_trace() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("f"), "before").unwrap();
    try_to_write([&*at("f"), &at("g")]).unwrap();
    assert_eq!(std::fs::read(at("f")).unwrap(), b"before");
    let error = try_to_write([&*at("g"), &at("no/f")]).unwrap_err().to_string();
    assert!(error.contains("no/f") && error.contains("make the folder first"), "{error}");
    let twice = try_to_write([&*at("f"), &at("./f")]);
    assert!(matches!(twice, Err(DataError::Unwritable { .. })));
    assert_eq!(files(&folder), ["f"]);
}

#[cfg(unix)]
#[test]
fn atomic_files_follow_links_and_spare_devices() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = folder();
    let (path, link) = (folder.path().join("f"), folder.path().join("link"));
    std::fs::write(&path, "before").unwrap();
    symlink("f", &link).unwrap();
    AtomicFile::create(&link).unwrap().commit().unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    // Written as any other file would be, not with the mode of a private temporary one.
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().permissions().mode();
    assert_eq!(mode("f"), mode("plain"));
    // What a link leads to need not be there.
    std::fs::create_dir(folder.path().join("inside")).unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    symlink("second", &first).unwrap();
    symlink("inside/new", &second).unwrap();
    AtomicFile::create(&first).unwrap().commit().unwrap();
    assert!(first.is_symlink() && second.is_symlink());
    assert!(folder.path().join("inside/new").is_file());
    symlink("round", folder.path().join("round")).unwrap();
    let round = AtomicFile::create(folder.path().join("round"));
    assert!(matches!(round, Err(DataError::Unwritable { .. })));
    assert!(matches!(AtomicFile::create("/dev/null"), Err(DataError::NotAFile(_))));
    assert!(matches!(Npz::open("/dev/zero"), Err(DataError::NotAFile(_))));
}

#[test]
fn zip64_members_are_read() {
    let folder = folder();
    let path = folder.path().join("a.npz");
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("w.npy", stored.large_file(true)).unwrap();
    zip.write_all(&npy::write_header(DType::U8, &[3])).unwrap();
    zip.write_all(&[1, 2, 3]).unwrap();
    std::fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
    assert_eq!(Npz::open(&path).unwrap().array("w").unwrap().bytes(), [1, 2, 3]);
}

/// Large arrays are read in pieces, by several threads.
#[test]
fn what_is_read_in_pieces_is_what_the_file_has() {
    let folder = folder();
    let path = folder.path().join("large");
    let bytes: Vec<u8> =
        (0..40u32 << 18).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = MappedFile::open(&path).unwrap();
    let ty = TensorType::new(DType::F32, [bytes.len() / 4 - 1]);
    let array = Array::new(&path, "x".into(), ty, &file, 4..bytes.len()).unwrap();
    let mut found = vec![0; bytes.len() - 15];
    array.read(11, &mut found).unwrap();
    assert!(found == bytes[15..]);
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(array.read(11, &mut found).is_err(), "the file is shorter");
}
