/*
 * FlagCX as far as its plugins see it: it takes the adaptors of FLAGCX_CCL_ADAPTOR_PLUGIN and FLAGCX_DEVICE_ADAPTOR_PLUGIN
 * by FlagCX's rules, and runs homogeneous communicators through them in FlagCX's order of calls. It has no adaptor of its
 * own: where FlagCX goes on with one because it has refused a plugin, every call here fails with flagcxNotSupported.
 */
#ifndef MINI_FLAGCX_H
#define MINI_FLAGCX_H
#include "flagcx_adaptor.h"

/* What went through the plugin as this side counts it. */
struct mini_counts { unsigned long communicators, operations; };
struct mini_counts mini_flagcx_counts(void);

/* Whether the plugin's own counters say the same, and that it was asked about devices; says so on stderr if not. */
int mini_flagcx_went_through_the_plugin(void);
#endif
