//! What is evaluated: constants of a graph, by the runtime's kernels for passes and importer; and
//! a model, whose figures are put together from those of batches.

use arenic_ir::{Op, TensorType};
use arenic_passes::Evaluate;
use arenic_passes::differentiate::{COUNTED, WEIGHTED};
use arenic_runtime::kernel::Draw;
use arenic_runtime::reference;
use std::collections::BTreeMap;

/// The runtime's kernels as the passes' evaluator of constants.
pub struct Kernels;

impl Evaluate for Kernels {
    fn evaluate(&self, op: &Op, inputs: &[(&TensorType, &[u8])]) -> Option<Vec<Vec<u8>>> {
        let results = reference::evaluate(op, inputs, Draw::default()).ok()?;
        Some(results.into_iter().map(|(_, bytes)| bytes).collect())
    }
}

/// Means of a model's scalars over batches. A loss and an accuracy of classes are means over all
/// targets that count, however these are spread over batches; others are means over batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Means {
    /// Sums of weighted figures, and of their weights.
    sums: BTreeMap<String, (f64, f64)>,
    counted: Option<u64>,
}

impl Means {
    /// Adds the scalars of a batch, in the order of the outputs.
    pub fn add(&mut self, scalars: &[(&str, f64)]) {
        let (figures, counted) = match scalars {
            [figures @ .., (COUNTED, n)] if ends_with_figures(figures) => (figures, Some(*n)),
            all => (all, None),
        };
        if let Some(n) = counted {
            *self.counted.get_or_insert(0) += n as u64;
        }
        let (of_batches, of_targets) =
            figures.split_at(figures.len() - if counted.is_some() { FIGURES.len() } else { 0 });
        let of_batches = match of_batches {
            [rest @ .., (mean, x), (sum, weight)]
                if counted.is_some() && [*mean, *sum] == WEIGHTED =>
            {
                self.weigh(mean, *x, *weight);
                rest
            }
            all => all,
        };
        of_batches.iter().for_each(|&(name, x)| self.weigh(name, x, 1.0));
        of_targets.iter().for_each(|&(name, x)| self.weigh(name, x, counted.unwrap_or(1.0)));
    }

    /// Adds a figure; what nothing counted in says nothing.
    fn weigh(&mut self, name: &str, x: f64, weight: f64) {
        let (sum, weights) = self.sums.entry(name.to_owned()).or_default();
        if weight > 0.0 {
            (*sum, *weights) = (*sum + weight * x, *weights + weight);
        }
    }

    /// How many targets counted; `None` if the model has no such number.
    pub fn counted(&self) -> Option<u64> {
        self.counted
    }

    /// Every scalar's name and mean, by name; NaN where nothing counted.
    pub fn into_each(self) -> impl Iterator<Item = (String, f64)> {
        self.sums.into_iter().map(|(name, (sum, weights))| (name, sum / weights))
    }
}

/// What is said before [`COUNTED`], last.
const FIGURES: [&str; 2] = ["loss", "accuracy"];

fn ends_with_figures(scalars: &[(&str, f64)]) -> bool {
    let names = scalars.iter().rev().map(|&(name, _)| name);
    scalars.len() >= FIGURES.len() && names.zip(FIGURES.iter().rev()).all(|(a, &b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(batches: &[&[(&str, f64)]]) -> (Option<u64>, Vec<(String, f64)>) {
        let mut all = Means::default();
        batches.iter().for_each(|batch| all.add(batch));
        (all.counted(), all.into_each().collect())
    }

    /// One of five targets is wrong; a batch in which none counts says nothing.
    #[test]
    fn batches_weigh_what_they_count() {
        let batch = |loss, accuracy, counted| {
            [("spread", 3.0 - loss), ("loss", loss), ("accuracy", accuracy), (COUNTED, counted)]
        };
        let batches = [batch(2.0, 0.0, 1.0), batch(0.5, 1.0, 4.0), batch(0.0, 0.0, 0.0)];
        let (counted, each) = means(&[&batches[0], &batches[1], &batches[2]]);
        assert_eq!(counted, Some(5));
        let named = |name: &str, x| (name.to_owned(), x);
        assert_eq!(each, [named("accuracy", 0.8), named("loss", 0.8), named("spread", 6.5 / 3.0)]);
    }

    /// Targets of the first batch weigh 6 together, those of the second 2.
    #[test]
    fn a_weighted_loss_is_over_what_targets_weigh() {
        let batch = |weighted, weight, loss, counted| {
            let [mean, sum] = WEIGHTED;
            [(mean, weighted), (sum, weight), ("loss", loss), ("accuracy", 1.0), (COUNTED, counted)]
        };
        let batches = [batch(1.0, 6.0, 2.0, 1.0), batch(3.0, 2.0, 0.5, 3.0)];
        let (_, each) = means(&[&batches[0], &batches[1]]);
        let named = |name: &str, x| (name.to_owned(), x);
        assert_eq!(
            each,
            [named("accuracy", 1.0), named("loss", 0.875), named("weighted_loss", 1.5)]
        );
    }

    #[test]
    fn what_a_model_calls_counted_is_a_figure_like_others() {
        let (counted, each) =
            means(&[&[("error", 1.0), (COUNTED, 4.0)], &[("error", 2.0), (COUNTED, 8.0)]]);
        assert_eq!(counted, None);
        assert_eq!(each, [(COUNTED.to_owned(), 6.0), ("error".to_owned(), 1.5)]);
    }
}
