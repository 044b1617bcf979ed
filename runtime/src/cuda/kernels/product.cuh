#pragma once
#include "arenic.cuh"
