/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutants.h - one-line breakages of the protocol that the simulator must find. Each stands in
 * src/steps/ or src/shared/ as AFD_MUTANT(name), which is 0 in every production build.
 *
 *     X(name, the rule it breaks, the scenario that is hunted, what it does)
 */
#ifndef AFD_EXEC_SIM_MUTANTS_H
#define AFD_EXEC_SIM_MUTANTS_H

#define AFD_MUTANT_LIST(X)                                                                         \
    X(reads_after_reply, "R-01", INDEXED, "the caller reads an indexed batch after its reply")     \
    X(header_wait_skipped, "R-02", MIX, "receive takes whatever header is there")                  \
    X(l2_of_silent_ffn_skipped, "R-03", SPARSE, "collect skips the header of ranks without a row") \
    X(reply_header_wait_skipped, "R-03", MIX, "collect takes whatever reply header is there")      \
    X(header_of_no_rows_skipped, "R-04", SPARSE, "no header for a pair without rows")              \
    X(reply_header_of_no_rows_skipped, "R-04", SPARSE, "no reply header for a pair without rows")  \
    X(stale_header_accepted, "R-02", MIX, "an older tag counts as the awaited one")                \
    X(credit_wait_skipped, "R-05", ROWS, "receive does not wait for credits")                      \
    X(reply_credit_wait_skipped, "R-05", ROWS, "collect does not wait for credits")                \
    X(acquire_relaxed, "R-05", ROWS, "waits look at words without acquiring")                      \
    X(credit_before_rows, "R-05", BLOCKS, "a block adds its credits before its rows")              \
    X(reply_credit_before_row, "R-05", ROWS, "a block adds a reply's credits before its rows")     \
    X(add_relaxed, "R-05", BLOCKS, "adds do not release the rows before them")                     \
    X(credit_counts_blocks, "R-05", BLOCKS, "a block adds 1, however many units it sent")          \
    X(reply_credit_counts_blocks, "R-05", BLOCKS, "a block adds 1 for all of its reply units")     \
    X(credit_base_not_advanced, "R-05", ROWS, "receive forgets the credits of the last exchange")  \
    X(reply_base_not_advanced, "R-05", ROWS, "collect forgets the credits of the last exchange")   \
    X(tag_not_advanced, "R-06", WORDS, "odd exchanges use the tag of the one before")              \
    X(scrub_skipped, "R-06", WRAP, "receive wipes no slot")                                        \
    X(reply_scrub_skipped, "R-06", WRAP, "collect wipes no slot")                                  \
    X(scrub_before_read, "R-06", WORDS, "receive wipes the slot before it reads it")               \
    X(scrub_by_other_block, "R-06", WORDS, "a slot is wiped by a block that did not read it")      \
    X(word_shared, "R-07", ROWS, "sources add to one credit word")                                 \
    X(word_cleared, "R-07", ROWS, "receive clears a credit word it has consumed")                  \
    X(parts_off_by_one, "R-08", PARTS, "the header promises one part less than is sent")           \
    X(part_in_one_credit, "R-08", PARTS, "only part 0 of a row counts")                            \
    X(fault_header_skipped, "R-09", BAD_ROUTE, "a bad route is not told to the FFN ranks")         \
    X(routes_checked_by_block_0, "R-09", BAD_ROUTE, "other blocks send headers unchecked")         \
    X(reply_region_shared, "R-10", MANY, "every FFN rank uses reply region 0")                     \
    X(gate_skipped, "R-11", BLOCKS, "blocks place before all have counted")                        \
    X(gate_relaxed, "R-11", BLOCKS, "the gate opens one block early")                              \
    X(commit_by_first_block, "R-11", BLOCKS, "the first block to finish commits")                  \
    X(slot_off_by_one, "R-12", ROWS, "odd tokens go to the slot of their neighbour")               \
    X(count_of_last_exchange, "R-12", MIX, "T of the last exchange is used")                       \
    X(routes_wait_skipped, "R-13", ROWS, "receive does not wait for the route table")              \
    X(table_after_word, "R-13", ROWS, "the route table is written after its word")                 \
    X(release_relaxed, "R-13", ROWS, "the routes word does not release the table")                 \
    X(cause_lost, "R-14", BAD_ROUTE, "the receiver of a fault reports another code")               \
    X(view_row_stale, "R-15", VIEW, "a view's rows without routes are not zeroed")                 \
    X(view_freed_early, "R-15", VIEW, "a view is still read after the next dispatch")              \
    X(regions_overlap, "R-16", ROWS, "weights lie over the routes")                                \
    X(credit_before_its_row, "R-17", LONE, "a lone block credits a row before it is written")      \
    X(in_order_by_blocks, "R-17", BLOCKS, "several blocks claim to send in order")                 \
    X(in_order_from_the_middle, "R-17", LONE, "a block in the middle counts from the first row")   \
    X(word_torn, "R-06", WORDS, "an LL word is stored as two halves")

#define AFD_MUTANT_ENUM(name, rule, scenario, text) AFD_MUTANT_##name,
enum afd_mutant { AFD_MUTANT_none, AFD_MUTANT_LIST(AFD_MUTANT_ENUM) AFD_MUTANT_COUNT };

#endif
