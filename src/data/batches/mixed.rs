//! Batches of several files for several variants of a step.
//!
//! A file goes to the variants that its shapes fit in all axes but the first of each array. Its rows
//! are cut into batches from the first on: a batch is that of the variant with exactly as many rows as
//! are left, or else with the most that are not more. What is left then is padded, or left out. Which batch
//! a step takes follows from its number alone, so that a run goes on after a restart as if there
//! were none.

use super::plan::{self, Rows};
use super::shuffle::{Shuffle, uniform};
use super::{Batches, Input, Notice, Share, Source, scalar};
use crate::data::error::DataError;
use crate::data::npz::Npz;
use crate::drops::{DroppedBranch, Drops};
use arenic_ir::types::{DType, TensorType};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// In which order batches of several files come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// One of each file in turn; a file of one batch gives it in every turn, one that is over is passed
    /// over until the epoch ends.
    #[default]
    InTurn,
    /// All of one file, then all of the next.
    OneAfterAnother,
    /// All batches of an epoch in an order of their own, which follows from this seed and the epoch.
    Shuffled(u64),
}

/// Which of several models a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Structure {
    /// One after another.
    #[default]
    Cycle,
    /// One by chance, which follows from this seed and the step's number.
    Random(u64),
}

/// How variants and files share the steps of a run.
#[derive(Clone, Debug, Default)]
pub struct Mixing {
    /// The order of batches.
    pub mix: Mix,
    /// Values of inputs in rows that fill up the last batch of a file, by name; without any of them
    /// the rows that fill no batch are left out. Other inputs are zero there.
    pub pad: Vec<(String, String)>,
    /// How models are chosen.
    pub structure: Structure,
    /// How probable models are, by name; others share the rest equally.
    pub probability: Vec<(String, f64)>,
    /// Branches that steps leave out, each by itself: which structure a step takes follows from them where that
    /// is by chance.
    pub drops: Option<Drops>,
}

/// What a variant takes.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The name of its model; empty where all are of one.
    pub structure: String,
    /// Names and types of its inputs.
    pub inputs: Vec<(String, TensorType)>,
}

/// The batches of a run.
#[derive(Debug)]
pub enum Mixed {
    /// Of one file for one variant.
    One(Batches),
    /// Of several.
    Several(Box<Several>),
}

/// Batches of several files, or for several variants.
#[derive(Debug)]
pub struct Several {
    /// By file, then by variant; `None` where the shapes do not fit.
    feeds: Vec<Vec<Option<Feed>>>,
    /// Of one epoch, in order.
    turns: Vec<Turn>,
    /// Variants of which one is chosen by its model.
    groups: Vec<Vec<usize>>,
    /// Permutes the turns.
    order: Option<Shuffle>,
    /// Permute rows, by file.
    rows: Vec<Option<Shuffle>>,
    /// The model of each variant, as its place among all models.
    model: Vec<usize>,
    structure: Structure,
    /// By model.
    probability: Vec<f64>,
    /// Names of the models.
    models: Vec<String>,
    drops: Option<Drops>,
    /// By variant and input: the branch of which the input says whether the step keeps it.
    keeps: Vec<Vec<Option<usize>>>,
}

/// A variant's inputs from one file.
#[derive(Debug)]
struct Feed {
    inputs: Vec<Input>,
    /// For each input that differs from batch to batch the place of its array in the file, and the rows of
    /// a batch.
    varying: Vec<Option<(usize, u64)>>,
    /// An element of each input in rows that are filled up.
    pad: Vec<Vec<u8>>,
}

impl Feed {
    fn arrays(&self) -> impl Iterator<Item = (usize, u64)> {
        self.varying.iter().flatten().copied()
    }

    /// Rows of a batch, for comparisons.
    fn rows(&self) -> u64 {
        self.arrays().map(|(_, rows)| rows).max().unwrap_or(0)
    }
}

/// One batch of an epoch.
#[derive(Clone, Debug)]
struct Turn {
    file: usize,
    group: usize,
    /// By array, the first row.
    first: Vec<u64>,
    /// By array, the rows from there to the end.
    left: Vec<u64>,
}

impl Mixed {
    /// Matches files and `--set` values with the inputs of variants.
    ///
    /// # Errors
    /// As for [`Batches::new`]; a file fits no variant.
    pub fn new(
        variants: &[Wanted],
        files: &[Npz],
        set: &[(String, String)],
        shuffle: Option<u64>,
        mixing: &Mixing,
        share: &Share,
    ) -> Result<(Mixed, Vec<Notice>), DataError> {
        let is_plain = mixing.pad.is_empty() && mixing.drops.is_none();
        let one = if is_plain { variants } else { &[] };
        if let ([only], [] | [_]) = (one, files) {
            let inputs = &only.inputs;
            let (batches, notices) = Batches::of_rank(inputs, files.first(), set, shuffle, share)?;
            return Ok((Mixed::One(batches), notices));
        }
        if share.ranks > 1 {
            return Err(DataError::Mixing(
                "ranks take their rows of the batches of one file; give one --data, without --pad, to a step \
                 of one size"
                    .to_owned(),
            ));
        }
        let (several, notices) = Several::new(variants, files, set, shuffle, mixing)?;
        Ok((Mixed::Several(Box::new(several)), notices))
    }

    /// Batches of one epoch.
    pub fn count(&self) -> u64 {
        match self {
            Mixed::One(batches) => batches.count(),
            Mixed::Several(several) => several.turns.len() as u64,
        }
    }

    /// The variant whose turn a step is, counted from 0 through all epochs.
    pub fn variant(&mut self, step: u64) -> usize {
        match self {
            Mixed::One(_) => 0,
            Mixed::Several(several) => several.variant(step),
        }
    }

    /// False where a variant's input has the same value in every step.
    pub fn varies(&self, variant: usize, input: usize) -> bool {
        match self {
            Mixed::One(batches) => batches.varies(input),
            Mixed::Several(several) if several.keeps[variant][input].is_some() => true,
            Mixed::Several(several) => {
                let feeds = || several.feeds.iter().filter_map(|of_file| of_file[variant].as_ref());
                let is_set = |feed: &Feed| matches!(feed.inputs[input].source, Source::Value(_));
                !feeds().all(is_set)
            }
        }
    }

    /// Copies the value of an input of the step's variant to `dst`, as [`Batches::fill`] does.
    ///
    /// # Errors
    /// The file can no longer be read.
    ///
    /// # Panics
    /// There is no such input, or `dst` is not as long as its type says.
    pub fn fill(&mut self, step: u64, input: usize, dst: &mut [u8]) -> Result<(), DataError> {
        match self {
            Mixed::One(batches) => batches.fill(step, input, dst),
            Mixed::Several(several) => several.fill(step, input, dst),
        }
    }
}

impl Several {
    fn new(
        variants: &[Wanted],
        files: &[Npz],
        set: &[(String, String)],
        shuffle: Option<u64>,
        mixing: &Mixing,
    ) -> Result<(Several, Vec<Notice>), DataError> {
        let all: Vec<(String, TensorType)> =
            variants.iter().flat_map(|v| v.inputs.iter().cloned()).collect();
        let mut values = plan::set_values(&all, &files.iter().collect::<Vec<_>>(), set)?;
        // What nobody gives is kept, or as it is drawn.
        let branches = mixing.drops.as_ref().map_or(&[][..], |drops| &drops.branches);
        let is_given = |name: &str| files.iter().any(|npz| npz.array(name).is_some());
        let drawn: Vec<bool> = branches
            .iter()
            .map(|b| !values.contains_key(&b.input[..]) && !is_given(&b.input))
            .collect();
        for (branch, _) in branches.iter().zip(&drawn).filter(|(_, drawn)| **drawn) {
            values.insert(&branch.input, "1");
        }
        let kept = |(name, _): &(String, TensorType)| {
            branches.iter().position(|b| b.input == *name).filter(|&i| drawn[i])
        };
        let kept = |wanted: &Wanted| wanted.inputs.iter().map(kept).collect::<Vec<_>>();
        let is_random = matches!(mixing.structure, Structure::Random(_));
        let keeps: Vec<Vec<Option<usize>>> = variants
            .iter()
            .map(|wanted| if is_random { kept(wanted) } else { vec![None; wanted.inputs.len()] })
            .collect();
        let pad: BTreeMap<&str, &str> =
            mixing.pad.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        plan::refuse_unknown("--pad", pad.keys().copied(), &all)?;
        let mut notices = Vec::new();
        let (mut feeds, mut cuts) = (Vec::new(), Vec::new());
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let lone = [None];
        let opened: Vec<Option<&Npz>> = files.iter().map(Some).collect();
        let opened = if files.is_empty() { &lone[..] } else { &opened };
        for (file, &npz) in opened.iter().enumerate() {
            let fits = variants.iter().map(|wanted| Feed::new(wanted, npz, &values, &pad));
            let (mut of_file, mut why) = (Vec::new(), Vec::new());
            for (feed, wanted) in fits.zip(variants) {
                match feed {
                    Ok(feed) => of_file.push(Some(feed)),
                    Err(e) => {
                        why.push(format!("{}: {e}", wanted.name));
                        of_file.push(None);
                    }
                }
            }
            let path = npz.map_or_else(Default::default, |npz| npz.path().to_owned());
            if of_file.iter().all(Option::is_none) {
                return Err(DataError::NoVariant { path, why });
            }
            let totals = totals(npz);
            let (turns, left) = cut(file, &of_file, &totals, !pad.is_empty(), &mut groups);
            let least = of_file.iter().flatten().map(Feed::rows).min().unwrap_or(0);
            if turns.is_empty() {
                let why = vec![format!("the smallest batch has {least} rows, the file has fewer")];
                return Err(DataError::NoVariant { path, why });
            }
            for (array, &dropped) in npz.iter().flat_map(|npz| npz.arrays()).zip(&left) {
                let rows = array.ty().shape.first().copied().unwrap_or(0) as u64;
                if dropped > 0 && dropped < rows {
                    let (name, batch_rows) = (array.name().to_owned(), least);
                    notices.push(Notice::PartialBatchDropped { name, rows, dropped, batch_rows });
                }
            }
            if let Some(last) = turns.last() {
                let batch = of_file[groups[last.group][0]].as_ref().map_or(0, Feed::rows);
                let rows =
                    last.left.iter().copied().filter(|&rows| rows > 0).max().unwrap_or(batch);
                if rows < batch {
                    notices.push(Notice::Padded { path, rows, batch_rows: batch });
                }
            }
            feeds.push(of_file);
            cuts.push(turns);
        }
        let rows = match shuffle {
            None => cuts.iter().map(|_| None).collect(),
            Some(seed) => permutations(seed, &feeds, &cuts, &groups, &mut notices)?,
        };
        let turns = in_order(&cuts, mixing.mix);
        let order = match mixing.mix {
            Mix::Shuffled(seed) => {
                let len = turns.len() as u64;
                let len = u32::try_from(len).map_err(|_| DataError::TooManyRows(len))?;
                Some(Shuffle::new(seed, len, 1))
            }
            _ => None,
        };
        let (mut models, mut model): (Vec<&str>, Vec<usize>) = (Vec::new(), Vec::new());
        for wanted in variants {
            let known = models.iter().position(|name| *name == wanted.structure);
            model.push(known.unwrap_or(models.len()));
            if known.is_none() {
                models.push(&wanted.structure);
            }
        }
        let probability = probabilities(&models, mixing)?;
        let (structure, drops) = (mixing.structure, mixing.drops.clone());
        if drops.is_some() && !mixing.probability.is_empty() {
            return Err(DataError::Mixing(
                "--probability is of models; branches have theirs from --drop-layers of `arenic compile`"
                    .to_owned(),
            ));
        }
        let models = models.into_iter().map(str::to_owned).collect();
        let several = Several {
            feeds,
            turns,
            groups,
            order,
            rows,
            model,
            structure,
            probability,
            models,
            drops,
            keeps,
        };
        Ok((several, notices))
    }

    /// The step's epoch, and its place among the turns.
    fn turn(&mut self, step: u64) -> (u64, usize) {
        let count = self.turns.len() as u64;
        let (epoch, position) = (step / count, step % count);
        let place = match &mut self.order {
            None => position as usize,
            Some(order) => order.pieces(epoch, position)[0] as usize,
        };
        (epoch, place)
    }

    fn variant(&mut self, step: u64) -> usize {
        let (_, turn) = self.turn(step);
        let group = &self.groups[self.turns[turn].group];
        let mut models: Vec<usize> = group.iter().map(|&v| self.model[v]).collect();
        models.dedup();
        let drawn = match (self.structure, &self.drops) {
            (Structure::Random(seed), Some(drops)) => {
                let structure = drops.structure(&drops.left_out(seed, step));
                models.iter().copied().find(|&m| Some(self.models[m].as_str()) == structure)
            }
            _ => None,
        };
        let chosen = match (self.structure, drawn) {
            (_, Some(drawn)) => drawn,
            (Structure::Cycle, None) => models[(step % models.len() as u64) as usize],
            (Structure::Random(seed), None) => {
                let whole: f64 = models.iter().map(|&m| self.probability[m]).sum();
                let mut left = uniform(seed, step) * whole;
                let past = |&&m: &&usize| {
                    left -= self.probability[m];
                    left < 0.0
                };
                // Rounding may leave a little at the end; what is never taken is not taken then.
                let possible = |&&m: &&usize| self.probability[m] > 0.0;
                let last = models.iter().rfind(possible).unwrap_or(&models[0]);
                *models.iter().find(past).unwrap_or(last)
            }
        };
        group.iter().copied().find(|&v| self.model[v] == chosen).unwrap_or(group[0])
    }

    fn fill(&mut self, step: u64, input: usize, dst: &mut [u8]) -> Result<(), DataError> {
        let variant = self.variant(step);
        let (epoch, turn) = self.turn(step);
        let Turn { file, first, left, .. } = &self.turns[turn];
        let Some(feed) = &self.feeds[*file][variant] else { return Ok(()) };
        let of = &feed.inputs[input];
        assert_eq!(dst.len() as u64, of.ty.bytes(), "input {input} has another size");
        if let (Some(branch), Structure::Random(seed), Some(drops)) =
            (self.keeps[variant][input], self.structure, &self.drops)
        {
            let is_kept = !drops.left_out(seed, step).contains(&branch);
            let number = if is_kept { "1" } else { "0" };
            let bytes = scalar::parse(of.ty.dtype, number).unwrap_or_default();
            dst.copy_from_slice(&bytes);
            return Ok(());
        }
        match (&of.source, feed.varying[input]) {
            (Source::Value(bytes), _) => dst.copy_from_slice(bytes),
            (Source::Whole(array), _) | (Source::Rows(array), None) => of.read(array, 0, dst)?,
            (Source::Rows(array), Some((place, rows))) => {
                let row = dst.len() / rows as usize;
                let there = left[place].min(rows) as usize;
                let (filled, padded) = dst.split_at_mut(there * row);
                match &mut self.rows[*file] {
                    None => of.read(array, first[place] as usize * row, filled)?,
                    Some(shuffle) => {
                        let units = shuffle.units(epoch, first[place], there);
                        for (to, &from) in filled.chunks_exact_mut(row.max(1)).zip(units) {
                            of.read(array, from as usize * row, to)?;
                        }
                    }
                }
                let pad = &feed.pad[input];
                padded.chunks_exact_mut(pad.len().max(1)).for_each(|to| to.copy_from_slice(pad));
            }
        }
        if of.ty.dtype == DType::Bool {
            dst.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(())
    }
}

impl Feed {
    fn new(
        wanted: &Wanted,
        npz: Option<&Npz>,
        values: &BTreeMap<&str, &str>,
        pad: &BTreeMap<&str, &str>,
    ) -> Result<Feed, DataError> {
        let mut feed = Feed { inputs: Vec::new(), varying: Vec::new(), pad: Vec::new() };
        let places: HashMap<&str, usize> =
            npz.into_iter().flat_map(Npz::names).enumerate().map(|(i, name)| (name, i)).collect();
        for (name, ty) in &wanted.inputs {
            let mut counts: Vec<Rows> = Vec::new();
            let input = plan::input(name, ty, values, npz, plan::Short::Allowed, &mut counts)?;
            let place = places.get(name.as_str()).copied();
            feed.varying
                .push(counts.first().map(|rows| rows.per_batch).and_then(|n| Some((place?, n))));
            feed.inputs.push(input);
            feed.pad.push(match pad.get(name.as_str()) {
                None => vec![0; ty.dtype.size() as usize],
                Some(value) => scalar::parse(ty.dtype, value).map_err(|reason| {
                    let (name, value, ty) = (name.clone(), (*value).to_owned(), ty.clone());
                    DataError::PadValue { name, value, ty, reason }
                })?,
            });
        }
        Ok(feed)
    }
}

/// Rows of the arrays of a file.
fn totals(npz: Option<&Npz>) -> Vec<u64> {
    let rows = |ty: &TensorType| ty.shape.first().copied().unwrap_or(1) as u64;
    npz.into_iter().flat_map(Npz::arrays).map(|array| rows(array.ty())).collect()
}

/// Cuts a file into batches; gives what is left of each array that differs from batch to batch.
fn cut(
    file: usize,
    feeds: &[Option<Feed>],
    totals: &[u64],
    pads: bool,
    groups: &mut Vec<Vec<usize>>,
) -> (Vec<Turn>, Vec<u64>) {
    let mut turns = Vec::new();
    let mut first = vec![0; totals.len()];
    loop {
        let left: Vec<u64> = totals.iter().zip(&first).map(|(total, used)| total - used).collect();
        let fitting = || feeds.iter().enumerate().filter_map(|(v, feed)| Some((v, feed.as_ref()?)));
        let all = |feed: &Feed, holds: fn(u64, u64) -> bool| {
            feed.arrays().next().is_some() && feed.arrays().all(|(a, rows)| holds(rows, left[a]))
        };
        let is_exact = |feed: &Feed| match feed.arrays().next() {
            None => turns.is_empty(),
            Some(_) => all(feed, |rows, left| rows == left),
        };
        let exact: Vec<usize> = fitting().filter(|(_, f)| is_exact(f)).map(|(v, _)| v).collect();
        let full = || fitting().filter(|(_, feed)| all(feed, |rows, left| rows <= left));
        let most = full().map(|(_, feed)| feed.rows()).max();
        let short = || {
            let wanted =
                |&(_, feed): &(usize, &Feed)| all(feed, |rows, left| left > 0 && rows >= left);
            fitting().filter(move |_| pads).filter(wanted)
        };
        let fewest = short().map(|(_, feed)| feed.rows()).min();
        let (group, ends): (Vec<usize>, bool) = if !exact.is_empty() {
            (exact, true)
        } else if most.is_some() {
            let of = full().filter(|(_, feed)| Some(feed.rows()) == most);
            (of.map(|(v, _)| v).collect(), false)
        } else {
            let of = short().filter(|(_, feed)| Some(feed.rows()) == fewest);
            (of.map(|(v, _)| v).collect(), true)
        };
        let Some(feed) = group.first().and_then(|&v| feeds[v].as_ref()) else {
            let varies = |a: usize| fitting().any(|(_, feed)| feed.arrays().any(|(b, _)| a == b));
            let left = left.into_iter().enumerate();
            return (turns, left.map(|(a, rows)| if varies(a) { rows } else { 0 }).collect());
        };
        let used: Vec<(usize, u64)> = feed.arrays().collect();
        let place = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        turns.push(Turn { file, group: place, first: first.clone(), left });
        if ends {
            return (turns, vec![0; totals.len()]);
        }
        used.into_iter().for_each(|(a, rows)| first[a] += rows);
    }
}

/// The turns of all files in the order of one epoch.
fn in_order(files: &[Vec<Turn>], mix: Mix) -> Vec<Turn> {
    if mix != Mix::InTurn {
        return files.concat();
    }
    let most = files.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |k: usize| {
        files.iter().filter_map(move |turns| match &turns[..] {
            [only] => Some(only.clone()),
            several => several.get(k).cloned(),
        })
    };
    (0..most).flat_map(turn).collect()
}

/// Permutations of rows, of each file whose arrays have the same rows in every batch.
fn permutations(
    seed: u64,
    feeds: &[Vec<Option<Feed>>],
    cuts: &[Vec<Turn>],
    groups: &[Vec<usize>],
    notices: &mut Vec<Notice>,
) -> Result<Vec<Option<Shuffle>>, DataError> {
    let mut all = Vec::new();
    for (file, (of_file, turns)) in feeds.iter().zip(cuts).enumerate() {
        let differ = of_file
            .iter()
            .flatten()
            .find(|feed| feed.arrays().any(|(_, rows)| rows != feed.rows()));
        if let Some(feed) = differ {
            let named = feed.inputs.iter().zip(&feed.varying).filter_map(|(input, varying)| {
                let Source::Rows(array) = &input.source else { return None };
                Some((array.name().to_owned(), (*varying)?.1))
            });
            notices.push(Notice::RowsKept { inputs: named.collect() });
            all.push(None);
            continue;
        }
        // Rows that are left out are so before any are permuted.
        let end = |turn: &Turn| {
            let arrays = of_file[groups[turn.group][0]].iter().flat_map(Feed::arrays);
            arrays.map(|(a, rows)| turn.first[a] + rows.min(turn.left[a])).max()
        };
        let len = turns.iter().filter_map(end).max().unwrap_or(0);
        let len = u32::try_from(len).map_err(|_| DataError::TooManyRows(len))?;
        all.push((len > 1).then(|| Shuffle::new(seed.wrapping_add(file as u64), len, 1)));
    }
    if all.iter().all(Option::is_none) && notices.is_empty() {
        notices.push(Notice::NothingToShuffle);
    }
    Ok(all)
}

impl Drops {
    /// The branches that a step leaves out, which follow from a seed and the step's number.
    fn left_out(&self, seed: u64, step: u64) -> BTreeSet<usize> {
        let branches = self.branches.iter().enumerate();
        let is_out = |(i, branch): (usize, &DroppedBranch)| {
            let own = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            (uniform(own, step) < branch.probability).then_some(i)
        };
        branches.filter_map(is_out).collect()
    }
}

/// How probable each model is.
fn probabilities(models: &[&str], mixing: &Mixing) -> Result<Vec<f64>, DataError> {
    let mut given: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, p) in &mixing.probability {
        if !models.contains(&name.as_str()) {
            let known = models.join(", ");
            return Err(DataError::Mixing(format!(
                "--probability {name}: no variant has a model of that name; there are {known}"
            )));
        }
        if !(0.0..=1.0).contains(p) || given.insert(name, *p).is_some() {
            return Err(DataError::Mixing(format!(
                "--probability {name}={p}: give each model once, with a number between 0 and 1"
            )));
        }
    }
    let sum: f64 = given.values().sum();
    let others = models.len() - given.len();
    if sum > 1.0 + 1e-9 || others == 0 && (sum - 1.0).abs() > 1e-9 {
        let message = format!("the probabilities of models sum up to {sum}, not to 1");
        return Err(DataError::Mixing(message));
    }
    let rest = (1.0 - sum).max(0.0) / others.max(1) as f64;
    Ok(models.iter().map(|name| given.get(name).copied().unwrap_or(rest)).collect())
}
