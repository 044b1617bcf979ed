//! Figures about a plan. Files and reports have them by name.

use std::collections::BTreeMap;

/// Makes the struct of its fields, and their names for files and reports.
macro_rules! figures {
    (
        $(#[$about:meta])* $name:ident
        always { $($(#[doc = $doc:literal])* $always:ident,)* }
        where_known { $($(#[doc = $known_doc:literal])* $known:ident,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $always: u64,)*
            $($(#[doc = $known_doc])* pub $known: Option<u64>,)*
        }

        impl $name {
            /// The figures by their names.
            pub fn named(&self) -> BTreeMap<&'static str, u64> {
                let known = [$(self.$known.map(|figure| (stringify!($known), figure)),)*];
                let always = [$((stringify!($always), self.$always),)*];
                always.into_iter().chain(known.into_iter().flatten()).collect()
            }

            /// From a file; names that this version does not know are left out.
            pub(super) fn read(named: &BTreeMap<String, u64>) -> Self {
                let figure = |name: &str| named.get(name).copied();
                $name {
                    $($always: figure(stringify!($always)).unwrap_or(0),)*
                    $($known: figure(stringify!($known)),)*
                }
            }
        }
    };
}

figures! {
    /// What a target's plan takes. Peaks and arenas are the checker's.
    Figures
    always {
        /// Bytes of the arena on the device.
        arena_bytes,
        /// The most bytes that are alive on the device at once.
        live_peak_bytes,
        /// Bytes of device memory that every order of the operators needs; where tensors leave or are
        /// computed again, that every plan needs.
        lower_bound_bytes,
        /// The live peak of definition order, in bytes.
        definition_order_bytes,
        /// Bytes of the arena above the live peak.
        fragmentation_bytes,
        /// Bytes of the arena in host memory.
        host_arena_bytes,
        /// Bytes of the states.
        state_bytes,
        /// Bytes of the constants.
        constant_bytes,
        /// Operators.
        nodes,
        /// Bytes that a step copies between device and host memory.
        swapped_bytes,
        /// Operators that run again.
        recomputed_nodes,
    }
    where_known {
        /// Bytes of the values in `bf16`, if there are any.
        bf16_bytes,
        /// Operators that read or make `bf16`, if there are such values.
        bf16_operators,
        /// Rounds of a step in rounds.
        micro_batches,
        /// Under a limit on device memory: predicted nanoseconds of a step.
        step_nanoseconds,
        /// Under a limit on device memory: nanoseconds of the step without it.
        unlimited_step_nanoseconds,
        /// Under a limit on device memory, if tensors are computed again and none is moved: nanoseconds
        /// that a step takes at least.
        step_nanoseconds_bound,
    }
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn a_file_gives_what_it_was_written_with() {
        let figures = Figures {
            arena_bytes: 3,
            nodes: 5,
            micro_batches: Some(0),
            step_nanoseconds: Some(7),
            ..Figures::default()
        };
        let named = figures.named();
        assert_eq!((named.len(), named["arena_bytes"], named["step_nanoseconds"]), (13, 3, 7));
        let mut file = named.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        assert_eq!(Figures::read(&file), figures);
        file.insert("of_a_newer_version".to_owned(), 1);
        assert_eq!(Figures::read(&file), figures);
    }
}
