//! Polynomials over parts of tensors: what two expressions have in common that compute the same.
//!
//! An *axis group* is a run of axes of a tensor that always go together: rows and columns of a
//! layer normalisation; images, channels and places of a batch normalisation. An [`Atom`] is a
//! value that is not looked into, or a sum over groups, and has the extent 1 along all groups
//! that are not in its [`Groups`]. Products are sorted and sums contain a single product whose
//! factors all vary along what is summed, so that equal polynomials have equal terms, however
//! they were written. Coefficients are what `f64` makes of the constants; two that differ by
//! less than constants are rounded to count as equal.

use arenic_ir::graph::ValueId;
use std::collections::BTreeMap;

/// A set of axis groups, one bit each.
pub(crate) type Groups = u8;

/// Constants of `f32`, and quotients of them, are this exact.
const ROUNDING: f64 = 1e-6;

/// Polynomials with more terms are none of a normalisation, nor of an activation.
const MOST_TERMS: usize = 64;

/// A factor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Atom {
    /// A value that varies along these groups.
    Value(ValueId, Groups),
    /// The sum over the first groups of a product.
    Sum(Groups, Product),
}

/// Factors with their exponents, none zero, in order.
pub(crate) type Product = Vec<(Atom, i32)>;

/// A sum of products, each with its coefficient.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polynomial(BTreeMap<Product, f64>);

impl Atom {
    /// Along which groups it varies.
    fn groups(&self) -> Groups {
        match self {
            Atom::Value(_, groups) => *groups,
            Atom::Sum(over, product) => groups(product) & !over,
        }
    }
}

fn groups(product: &[(Atom, i32)]) -> Groups {
    product.iter().fold(0, |all, (atom, _)| all | atom.groups())
}

fn times(a: &[(Atom, i32)], b: &[(Atom, i32)]) -> Product {
    let mut factors: BTreeMap<&Atom, i32> = BTreeMap::new();
    for (atom, exponent) in a.iter().chain(b) {
        *factors.entry(atom).or_default() += exponent;
    }
    factors.into_iter().filter(|&(_, e)| e != 0).map(|(atom, e)| (atom.clone(), e)).collect()
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= ROUNDING * a.abs().max(b.abs())
}

impl Polynomial {
    /// A number.
    pub(crate) fn number(x: f64) -> Polynomial {
        Polynomial::term(Vec::new(), x)
    }

    /// A value that varies along these groups.
    pub(crate) fn value(v: ValueId, groups: Groups) -> Polynomial {
        Polynomial::term(vec![(Atom::Value(v, groups), 1)], 1.0)
    }

    fn term(product: Product, coefficient: f64) -> Polynomial {
        Polynomial(BTreeMap::from([(product, coefficient)])).without_zeros()
    }

    fn without_zeros(mut self) -> Polynomial {
        self.0.retain(|_, c| *c != 0.0);
        self
    }

    fn add_term(&mut self, product: Product, coefficient: f64) {
        let sum = self.0.entry(product).or_default();
        // What is left of terms that cancel each other is rounding.
        *sum = if is_near(*sum, -coefficient) { 0.0 } else { *sum + coefficient };
    }

    /// The sum with a multiple of another one.
    pub(crate) fn plus(&self, factor: f64, other: &Polynomial) -> Polynomial {
        let mut sum = self.clone();
        other.0.iter().for_each(|(product, c)| sum.add_term(product.clone(), factor * c));
        sum.without_zeros()
    }

    /// The product with another one; `None` if it has too many terms.
    pub(crate) fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        if self.0.len() * other.0.len() > MOST_TERMS {
            return None;
        }
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                product.add_term(times(a, b), x * y);
            }
        }
        Some(product.without_zeros())
    }

    /// One by it, where it has a single term.
    pub(crate) fn inverse(&self) -> Option<Polynomial> {
        let mut terms = self.0.iter();
        let (Some((product, c)), None) = (terms.next(), terms.next()) else { return None };
        let product = product.iter().map(|(atom, e)| (atom.clone(), -e)).collect();
        Some(Polynomial::term(product, 1.0 / c))
    }

    /// The sum over groups of these extents.
    pub(crate) fn sum(&self, over: Groups, extent: impl Fn(Groups) -> f64) -> Polynomial {
        let mut sum = Polynomial::default();
        for (product, c) in &self.0 {
            let (mut varies, mut fixed): (Product, Product) =
                product.iter().cloned().partition(|(atom, _)| atom.groups() & over != 0);
            let along = groups(&varies) & over;
            // A sum of sums is one sum.
            if let [(Atom::Sum(inner, of), 1)] = &varies[..] {
                varies = vec![(Atom::Sum(inner | along, of.clone()), 1)];
            } else if along != 0 {
                varies = vec![(Atom::Sum(along, varies), 1)];
            }
            fixed = times(&fixed, &varies);
            sum.add_term(fixed, c * extent(over & !along));
        }
        sum.without_zeros()
    }

    /// True for the same terms with the same coefficients.
    pub(crate) fn equals(&self, other: &Polynomial) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|((a, x), (b, y))| a == b && is_near(*x, *y))
    }

    /// The number that it is.
    pub(crate) fn as_number(&self) -> Option<f64> {
        let mut terms = self.0.iter();
        match (terms.next(), terms.next()) {
            (None, _) => Some(0.0),
            (Some((product, c)), None) => product.is_empty().then_some(*c),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    /// `Σ (x − m)² = Σ x² − n·m²`, where `m = Σ x / n`; but not where the count is another one.
    #[test]
    fn a_variance_by_two_formulas() {
        let extent = |groups: Groups| if groups & 2 == 0 { 1.0 } else { 8.0 };
        let x = Polynomial::value(ValueId::new(0), 3);
        let mean = Polynomial::number(1.0 / 8.0).times(&x.sum(2, extent)).unwrap();
        let centred = x.plus(-1.0, &mean);
        let first = centred.times(&centred).unwrap().sum(2, extent);
        let squares = x.times(&x).unwrap().sum(2, extent);
        let square = mean.times(&mean).unwrap();
        assert!(first.equals(&squares.plus(-8.0, &square)));
        assert!(!first.equals(&squares.plus(-7.99, &square)));
        assert_eq!(first.plus(-1.0, &first).as_number(), Some(0.0));
    }

    /// What does not vary along a sum leaves it, and a sum over more of a sum is one sum.
    #[test]
    fn sums_are_merged() {
        let extent = |groups: Groups| [1.0, 2.0, 3.0, 6.0][usize::from(groups & 3)];
        let x = Polynomial::value(ValueId::new(0), 7);
        let w = Polynomial::value(ValueId::new(1), 4);
        let both = x.times(&w).unwrap().sum(3, extent);
        let twice = x.sum(1, extent).sum(2, extent).times(&w).unwrap();
        assert!(both.equals(&twice));
        assert!(w.sum(3, extent).equals(&Polynomial::default().plus(6.0, &w)));
        assert!(!both.equals(&x.sum(1, extent).times(&w).unwrap()));
    }
}
