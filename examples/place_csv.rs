//! Places buffers with lifetimes in one arena: reads MiniMalloc's CSV, prints the arena's height and a lower bound.
//!
//!     cargo run --release --example place_csv [BUFFERS.csv]

use arenic::placement;
use arenic_passes::pipeline::{NAMED, Pipeline};
use arenic_passes::place::Wish;
use arenic_passes::{Search, Standard};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args_os().nth(1).map(PathBuf::from);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/placement/A.1048576.csv");
    let instance = placement::read(&given.unwrap_or(example.into()), 1)?;

    let pipeline = Pipeline::parse(NAMED[0].1, &Standard)?;
    let search = Search { effort: Some(1.0), ..Search::default() };
    let wish = Wish { search, ..Wish::default() };
    let solution = pipeline.placer()?.place(&instance.problem, &wish);

    let bound = instance.problem.bound();
    println!(
        "{} buffers, {} bytes high by {}",
        solution.offsets.len(),
        solution.height,
        solution.method
    );
    println!("no placement is lower than {bound} bytes");
    assert!(solution.height >= bound);
    Ok(())
}
